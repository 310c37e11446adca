#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include <heed/serving.h>

namespace heed::web {

/// How probable each token of a text was to a decoder, and so many of the best; from the second token on, as nothing
/// stands before the first. One pass over the text; logits of some rows at a time.
std::vector<TokenScore> prompt_scores(Context& context, const Model& model, std::span<const std::int64_t> ids,
                                      std::int64_t best);

}  // namespace heed::web
