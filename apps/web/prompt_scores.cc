#include "prompt_scores.h"

#include <algorithm>

#include <heed/tape.h>

namespace heed::web {
std::vector<TokenScore> prompt_scores(Context& context, const Model& model, std::span<const std::int64_t> ids,
                                      std::int64_t best) {
    constexpr std::int64_t rows_at_once = 64;
    const auto tokens = static_cast<std::int64_t>(ids.size());
    Tape tape(context, {.record = false});
    const Value hidden = model.hidden(tape, {.input_ids = View(ids.data(), {1, tokens})});
    std::vector<TokenScore> scores;
    for (std::int64_t begin = 0; begin + 1 < tokens; begin += rows_at_once) {
        const std::int64_t end = std::min(tokens - 1, begin + rows_at_once);
        const Tensor logits = Tensor::copy_of(model.logits(tape, hidden.slice(1, begin, end))).to(DType::f32);
        const auto vocab = static_cast<std::size_t>(logits.shape()[2]);
        for (std::int64_t row = begin; row < end; ++row) {
            const std::span<const float> line(logits.as<float>() + static_cast<std::size_t>(row - begin) * vocab,
                                              vocab);
            scores.push_back(token_score(line, ids[static_cast<std::size_t>(row + 1)], best));
        }
    }
    return scores;
}

}  // namespace heed::web
