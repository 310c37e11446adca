#pragma once
/// What a model makes of texts: vectors, and how well it predicts or translates them.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <heed/model.h>
#include <heed/tokenizer.h>

namespace heed {

enum class EmbedPooling : std::uint8_t {
    mean,  ///< of the tokens that the mask shows
    cls,   ///< the first token
    last,  ///< the last one that the mask shows
};

struct EmbedOptions {
    EmbedPooling pooling = EmbedPooling::mean;
    bool normalise = true;  ///< to length 1
    std::string kernel{};
};

/// One vector for each row of input_ids [B,T]: [B,d] f32, from the last layer's output.
HEED_API Tensor embed(Context& context, const Model& model, const ForwardInputs& inputs,
                      const EmbedOptions& options = {});

/// One vector for each text, [B,d]. Texts are cut where the tokenizer's file says so, and computed a few at a time with
/// others of about their length.
HEED_API Tensor embed_texts(Context& context, const Model& model, const Tokenizer& tokenizer,
                            std::span<const std::string> texts, const EmbedOptions& options = {});

struct ScoreOptions {
    std::int64_t window = 0;  ///< tokens that the model sees at once; 0: what it was made for, at most 1024
    /// Tokens that a window is ahead of the one before; 0: half of it. Where it is the window itself, the first token
    /// of each window is not predicted.
    std::int64_t stride = 0;
    std::string kernel{};
};

struct TextScore {
    double negative_log_likelihood = 0;  ///< of all tokens that were predicted, natural logarithm
    std::int64_t tokens = 0;             ///< those; the first token of a text is none of them
    double perplexity() const;
    /// Of a text of so many bytes.
    double bits_per_byte(std::int64_t bytes) const;
};

/// How well a decoder predicts a text. Windows overlap: each token is predicted once, from as much before it as the
/// stride leaves.
HEED_API TextScore score_text(Context& context, const Model& model, std::span<const std::int64_t> ids,
                              const ScoreOptions& options = {});

/// What another form of the weights costs.
struct ScoreComparison {
    TextScore score{};       ///< of the model
    TextScore original{};    ///< of the other
    double logit_error = 0;  ///< root of the mean square of differences of logits
    double divergence = 0;   ///< of the probabilities from the original's, nats a token (Kullback-Leibler)
    double agreement = 1;    ///< part of the tokens where both think the same one most probable
};

/// Both models over the same windows.
HEED_API ScoreComparison compare_scores(Context& context, const Model& model, const Model& original,
                                        std::span<const std::int64_t> ids, const ScoreOptions& options = {});

struct Bleu {
    double score = 0;           ///< 0 to 100
    double precisions[4] = {};  ///< of 1 to 4 words, 0 to 100
    double brevity_penalty = 1;
    std::int64_t hypothesis_words = 0, reference_words = 0;
};

/// Corpus BLEU of translations against one reference each: words by mteval's 13a rules, zero counts smoothed by halves
/// again and again, which is what sacreBLEU computes by default.
HEED_API Bleu bleu(std::span<const std::string> hypotheses, std::span<const std::string> references);

}  // namespace heed
