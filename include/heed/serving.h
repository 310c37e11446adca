#pragma once
/// Many texts continued at once over one pool of cache pages.
///
///     heed::ServingLoop loop(model, {.decoding = {.tokens = 1 << 16, .sequences = 64}});
///     const auto id = loop.add({.prompt = ids, .max_new_tokens = 100});
///     while (loop.step(context)) {}
///     loop.take(id).tokens;

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <heed/context.h>
#include <heed/model.h>
#include <heed/sampling.h>
#include <heed/tokenizer.h>

namespace heed {

enum class FinishReason : std::uint8_t {
    running,    ///< not finished yet
    length,     ///< max_new_tokens
    end_token,  ///< one of eos
    stop,       ///< a stop string
    cancelled,
};

/// A token as it comes, and what it adds to the text where there is a tokenizer. Return false: enough.
using TokenCallback = std::function<bool(std::int64_t token, const std::string& text)>;

/// How probable a token was, by the model's logits before sampling changed them.
struct TokenScore {
    std::int64_t token = 0;
    double log_probability = 0;
    /// The most probable tokens, best first; of equal ones the lowest id first.
    std::vector<std::pair<std::int64_t, double>> best{};
};

/// Of a token among logits [V], in double, with so many of the best.
HEED_API TokenScore token_score(std::span<const float> logits, std::int64_t token, std::int64_t best = 0);

struct Request {
    /// Of a decoder: the text to continue, at least one token. Of an encoder-decoder: the source.
    std::vector<std::int64_t> prompt{};
    std::int64_t max_new_tokens = 20;
    std::int64_t min_new_tokens = 0;
    SamplingOptions sampling{};
    /// Names the random numbers together with the seed: equal requests with equal names give equal texts.
    std::uint64_t sequence = 0;
    std::optional<std::vector<std::int64_t>> eos = std::nullopt;  ///< absent: the model's
    GenerationTokens special{};
    std::optional<TokenRules> rules = std::nullopt;  ///< absent: what the model's folder forbids
    /// Of an encoder-decoder: what its target begins with, in place of the start token.
    std::vector<std::int64_t> decoder_prompt{};
    /// Tokens in front of a decoder's prompt that the model does not read: rules count them, penalties do not.
    std::vector<std::int64_t> padding{};
    std::vector<std::string> stop{};  ///< needs a tokenizer
    TokenCallback on_token{};
    /// Called before on_token with each token's score and so many of the best; absent: none is computed.
    std::function<void(const TokenScore&)> on_score{};
    std::int64_t best_scores = 0;
};

struct Generated {
    std::vector<std::int64_t> tokens{};  ///< the new ones, with the end token where one came
    std::string text{};                  ///< of them, up to a stop string; empty without a tokenizer
    FinishReason reason = FinishReason::running;
    double first_token_seconds = 0;  ///< since add
    double seconds = 0;              ///< since add, to the last one
};

/// Tokens that a cheap guess proposes and the model checks, several in one step. What comes out is what comes out
/// without it.
struct Speculation {
    std::int64_t tokens = 0;  ///< proposed at once; 0: none
    std::int64_t ngram = 3;   ///< what followed the last so many tokens earlier in the text is proposed
    /// A smaller model with the same vocabulary that proposes instead.
    std::optional<Model> draft = std::nullopt;
};

struct ServingOptions {
    DecodingOptions decoding{};
    std::int64_t prefill_tokens = 512;  ///< of prompts in one step at most; longer prompts take several
    bool share_prefixes = true;         ///< a prompt that begins like a running text takes over its pages
    Speculation speculation{};
    std::optional<Tokenizer> tokenizer = std::nullopt;
};

struct ServingStatistics {
    std::int64_t steps = 0, prefilled = 0, decoded = 0;  ///< prefilled: prompt tokens computed, again ones included
    std::int64_t shared = 0;                             ///< prompt tokens that were not computed, as others had them
    std::int64_t evictions = 0;
    std::int64_t proposed = 0, accepted = 0;
};

/// Requests join and leave a running batch. Where pages run out, the request that came last gives its own back and
/// is computed again later. A request's tokens do not depend on its neighbours.
///
/// One thread at a time.
class HEED_API ServingLoop {
public:
    using Id = std::int64_t;

    explicit ServingLoop(const Model& model, const ServingOptions& options = {});
    ServingLoop(ServingLoop&&) noexcept;
    ServingLoop& operator=(ServingLoop&&) noexcept;
    ~ServingLoop();

    /// Error where it can never be served: no tokens, ids beyond the vocabulary, more than the pool holds.
    Id add(Request request);
    /// It stops with what it has; nothing happens to one that has finished.
    void cancel(Id id);
    /// One step of all that run; false when nothing is left to do.
    bool step(Context& context);
    /// Until nothing is left.
    void run(Context& context);

    bool finished(Id id) const;
    /// The result so far; of a finished request it is handed over, and the id is forgotten.
    Generated take(Id id);

    std::int64_t waiting() const;
    std::int64_t running() const;
    std::int64_t free_pages() const;
    const ServingStatistics& statistics() const;

private:
    struct State;
    std::unique_ptr<State> state_;
};

struct GenerateOptions {
    std::int64_t max_new_tokens = 20;
    std::int64_t min_new_tokens = 0;
    SamplingOptions sampling{};
    std::optional<std::vector<std::int64_t>> eos = std::nullopt;
    GenerationTokens special{};
    std::optional<TokenRules> rules = std::nullopt;  ///< absent: what the model's folder forbids
    /// So many texts of each row; more than one where they are drawn.
    std::int64_t num_return_sequences = 1;
    std::vector<std::string> stop{};
    Speculation speculation{};
    std::optional<Tokenizer> tokenizer = std::nullopt;  ///< for stop strings
    std::string kernel{};
};

/// Every row of input_ids [B,T], all in one batch: [B,L] i64 as transformers' generate gives it. Of a decoder the
/// prompts, their padding kept, and the continuations; of an encoder-decoder the targets, start token first. Padding
/// behind what is shorter. Tokens that attention_mask hides are left out; without a mask, padding tokens, unless they
/// may end a text. Row r draws as sequence r of what comes out: num_return_sequences texts of the first row, then those
/// of the second. decoder_input_ids [B,T]: what the targets of an encoder-decoder begin with, the start token before it
/// where no row has it.
HEED_API Tensor generate_rows(Context& context, const Model& model, const View& input_ids, const View& attention_mask,
                              const GenerateOptions& options = {}, const View& decoder_input_ids = {});

/// One text to its end; `options.decoding` is made as large as it needs.
HEED_API Generated generate(Context& context, const Model& model, Request request, ServingOptions options = {});

}  // namespace heed
