#pragma once
/// What the next token of a text may be: from the model's folder, and from a call instead.

#include <heed/generation_config.h>
#include <heed/model.h>

#include <span>
#include <string>
#include <vector>

namespace heed {

/// What a call says of it.
struct GivenLimits {
    const char* function;
    const std::optional<std::vector<std::int64_t>>& eos;
    const GenerationTokens& special;
    const std::optional<TokenRules>& rules;
    std::int64_t min_new_tokens, max_new_tokens;
};

class TokenLimits {
public:
    TokenLimits() = default;
    TokenLimits(const Model& model, const GivenLimits& given);

    const std::vector<std::int64_t>& eos() const { return eos_; }
    bool ends(std::int64_t token) const;
    /// -inf for tokens that may not come next. `made`: how many tokens of the text are new.
    void apply(std::span<const std::int64_t> text, std::int64_t made, std::span<float> logits) const;

private:
    std::vector<std::int64_t> eos_;
    std::optional<std::int64_t> forced_bos_, forced_eos_;
    TokenRules rules_;
    std::int64_t min_new_tokens_ = 0, max_new_tokens_ = 0;
};

/// A text as rules see it.
std::vector<std::int64_t> behind_padding(const std::vector<std::int64_t>& padding,
                                         const std::vector<std::int64_t>& text);

/// What the decoder of an encoder-decoder reads first: what the caller gives, or the token that targets start with.
std::vector<std::int64_t> target_beginning(const char* function, const Model& model, const GenerationTokens& special,
                                           const std::vector<std::int64_t>& given);
/// The rows of decoder_input_ids [B,T], with the start token before them where no row begins with it, as transformers
/// has it. Without: as many empty rows.
std::vector<std::vector<std::int64_t>> decoder_prompts(const char* function, const Model& model,
                                                       const GenerationTokens& special, const View& decoder_input_ids,
                                                       std::int64_t rows);

/// What stands behind the end of texts that are shorter than others.
std::int64_t padding_token(const Model& model, const std::optional<std::vector<std::int64_t>>& eos,
                           const GenerationTokens& special);

}  // namespace heed
