#pragma once
/// Greedy and beam search: the most probable continuation, as transformers' generate computes it.
///
///     heed::Decoding decoding(model);
///     std::vector<std::int64_t> ids = heed::search(context, decoding, prompt, {.max_new_tokens = 32});

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <heed/context.h>
#include <heed/model.h>

namespace heed {

/// When a beam search with as many finished texts as beams ends.
enum class EarlyStopping : std::uint8_t {
    no,     ///< when no running beam looks as if it could become better
    yes,    ///< at once
    never,  ///< when none can
};

struct SearchOptions {
    std::int64_t max_new_tokens = 20;
    std::int64_t min_new_tokens = 0;  ///< before so many an end token is not chosen
    std::int64_t num_beams = 1;       ///< 1: greedy
    double length_penalty = 1;        ///< a finished text's score is its log-probability over length^penalty
    EarlyStopping early_stopping = EarlyStopping::no;
    double repetition_penalty = 1;  ///< as in <heed/sampling.h>; beams: of log-probabilities, as in transformers
    /// Tokens that end a text; absent: the model's.
    std::optional<std::vector<std::int64_t>> eos = std::nullopt;
    GenerationTokens special{};
    /// What may not come; absent: what the model's folder forbids.
    std::optional<TokenRules> rules = std::nullopt;
    /// Of an encoder-decoder: what its target begins with, in place of the start token.
    std::vector<std::int64_t> decoder_prompt{};
    /// Tokens in front of a decoder's prompt that the model does not read: rules count them, penalties do not.
    std::vector<std::int64_t> padding{};
    /// The so many best texts of a prompt: at most num_beams.
    std::int64_t num_return_sequences = 1;
};

/// What the model's folder forbids (Model::generation) is not chosen; what it asks for and heed lacks is an Error.
/// Of a decoder: the prompt and its continuation. Of an encoder-decoder: the target, its start token first, for the
/// source `prompt`. With the end token where one was reached. Ties go to the lowest id.
HEED_API std::vector<std::int64_t> search(Context& context, Decoding& decoding, std::span<const std::int64_t> prompt,
                                          const SearchOptions& options = {});

/// The num_return_sequences best texts, best first.
HEED_API std::vector<std::vector<std::int64_t>> search_best(Context& context, Decoding& decoding,
                                                            std::span<const std::int64_t> prompt,
                                                            const SearchOptions& options = {});

/// The same for every row of input_ids [B,T]: [B*N,L] i64, the N = num_return_sequences best texts of each, padding of
/// the prompt kept in front of it and padding behind what is shorter. Tokens that attention_mask hides are left out of
/// the computation; without a mask, padding tokens, unless they may end a text. Rows do not influence one another.
/// decoder_input_ids [B,T]: what the targets of an encoder-decoder begin with, the start token before it where no row
/// has it.
HEED_API Tensor search_rows(Context& context, const Model& model, const View& input_ids, const View& attention_mask,
                            const SearchOptions& options = {}, const std::string& kernel = {},
                            const View& decoder_input_ids = {});

/// Room in the caches that a search needs.
HEED_API DecodingOptions search_room(std::int64_t prompt, const SearchOptions& options);

}  // namespace heed
