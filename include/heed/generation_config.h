#pragma once
/// What a folder's generation_config.json asks of generation, beyond the special tokens that ModelConfig holds.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <heed/error.h>

namespace heed {

/// Tokens that a text may not have at some place.
struct TokenRules {
    std::vector<std::int64_t> suppress_tokens{};
    std::vector<std::int64_t> begin_suppress_tokens{};       ///< not as the first new token
    std::vector<std::vector<std::int64_t>> bad_words_ids{};  ///< no text contains one of these
    std::int64_t no_repeat_ngram_size = 0;                   ///< no so many tokens in a row come twice; 0: any may
    std::int64_t min_length = 0;                             ///< no end token before so many, prompt included

    bool empty() const {
        return suppress_tokens.empty() && begin_suppress_tokens.empty() && bad_words_ids.empty() &&
               no_repeat_ngram_size == 0 && min_length == 0;
    }
};

/// Tokens with a meaning in generation, as a call wants them. Absent: the model's.
struct GenerationTokens {
    std::optional<std::int64_t> pad{};
    std::optional<std::int64_t> decoder_start{};  ///< of an encoder-decoder: its target's first token
    std::optional<std::int64_t> forced_bos{};     ///< what must stand behind a text of one token
    std::optional<std::int64_t> forced_eos{};     ///< what must be the last one, where a text reaches its full length
};

/// Where a text stands when its next token is chosen.
struct TextSoFar {
    std::span<const std::int64_t> tokens{};  ///< of the decoder: prompt or start token, then the new ones
    std::int64_t made = 0;                   ///< new ones
    std::span<const std::int64_t> eos{};
    bool forced_first = false;  ///< the first new token is not chosen (forced_bos_token_id)
};

/// -inf in place of the logits of tokens that may not come next.
HEED_API void hide_tokens(const TokenRules& rules, const TextSoFar& text, std::span<float> logits);

/// Absent: not said by the file.
struct GenerationConfig {
    TokenRules rules{};
    std::optional<bool> do_sample{};
    std::optional<double> temperature{}, top_p{}, min_p{}, repetition_penalty{}, length_penalty{};
    std::optional<std::int64_t> top_k{}, num_beams{}, max_new_tokens{}, max_length{}, min_new_tokens{};
    std::optional<std::string> early_stopping{};  ///< true, false or never
    /// Settings that change what is generated and that heed does not have, as `name value`; with `sampled`, where
    /// tokens are drawn.
    std::vector<std::string> unknown{}, unknown_sampled{};
};

/// Error that names a setting which heed does not have. `function` begins its message.
HEED_API void refuse_unknown(const char* function, const GenerationConfig& config, bool sampled);

}  // namespace heed
