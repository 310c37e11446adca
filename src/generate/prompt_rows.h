#pragma once
/// The rows of input_ids as a search or the serving loop takes them.

#include <heed/generation_config.h>
#include <heed/model.h>

#include <vector>

namespace heed {

/// A row as it came, the tokens of it that the model reads, and the others.
struct PromptRow {
    std::vector<std::int64_t> whole{}, tokens{}, padding{};
};

struct GivenRows {
    const char* function;
    const View& input_ids;
    const View& attention_mask;
    const std::optional<std::vector<std::int64_t>>& eos;
    const GenerationTokens& special;
};

/// Without a mask padding tokens are hidden, unless they may end a text, as transformers has it; not where nothing
/// would be left of a row.
std::vector<PromptRow> prompt_rows(const Model& model, const GivenRows& given);

}  // namespace heed
