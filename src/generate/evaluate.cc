#include <heed/evaluate.h>

#include "base/refuse.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "generate/first_largest.h"

namespace heed {
namespace {

double at(const View& view, std::int64_t row, std::int64_t column) {
    const auto* bytes = static_cast<const std::byte*>(view.data());
    const std::int64_t n = row * view.stride(0) + column * view.stride(1);
    switch (view.dtype()) {
        case DType::i64: return static_cast<double>(reinterpret_cast<const std::int64_t*>(bytes)[n]);
        case DType::i32: return static_cast<double>(reinterpret_cast<const std::int32_t*>(bytes)[n]);
        default: return static_cast<double>(reinterpret_cast<const std::uint8_t*>(bytes)[n]);
    }
}

/// How much each token counts for the vector of its row.
std::vector<double> pooling_weights(const ForwardInputs& inputs, EmbedPooling pooling, std::int64_t row) {
    const std::int64_t length = inputs.input_ids.extent(1);
    std::vector<double> weights(static_cast<std::size_t>(length), 1);
    if (inputs.attention_mask) {
        for (std::int64_t t = 0; t < length; ++t) {
            weights[static_cast<std::size_t>(t)] = at(inputs.attention_mask, row, t) != 0 ? 1 : 0;
        }
    }
    const auto shown = std::find(weights.begin(), weights.end(), 1.0);
    if (shown == weights.end()) {
        refuse("embed", "attention_mask", "a token in every row", "none in row " + std::to_string(row));
    }
    if (pooling == EmbedPooling::mean) { return weights; }
    const auto last = std::find(weights.rbegin(), weights.rend(), 1.0).base() - 1;
    const auto kept = pooling == EmbedPooling::cls ? shown : last;
    const auto index = static_cast<std::size_t>(kept - weights.begin());
    std::fill(weights.begin(), weights.end(), 0);
    weights[index] = 1;
    return weights;
}

void check_mask(const ForwardInputs& inputs) {
    if (!inputs.input_ids || inputs.input_ids.rank() != 2 || inputs.input_ids.extent(1) < 1) {
        refuse("embed", "input_ids", "[B,T] with T of 1 or more", "something else");
    }
    const View& mask = inputs.attention_mask;
    if (!mask) { return; }
    const bool type = mask.dtype() == DType::i64 || mask.dtype() == DType::i32 || size_of(mask.dtype()) == 1;
    if (!type || mask.rank() != 2 || mask.extent(0) != inputs.input_ids.extent(0) ||
        mask.extent(1) != inputs.input_ids.extent(1)) {
        refuse("embed", "attention_mask", "integers of the shape of input_ids", "something else");
    }
}

/// -log p of `token`.
double surprise(std::span<const float> logits, std::int64_t token) {
    const double most = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const float logit : logits) { sum += std::exp(static_cast<double>(logit) - most); }
    return most + std::log(sum) - static_cast<double>(logits[static_cast<std::size_t>(token)]);
}

}  // namespace

Tensor embed(Context& context, const Model& model, const ForwardInputs& inputs, const EmbedOptions& options) {
    check_mask(inputs);
    if (model.config().kind == ModelKind::encoder_decoder) {
        refuse("embed", "model", "an encoder or a decoder", "an encoder-decoder");
    }
    ForwardOptions forward{.logits = false, .hidden = true};
    forward.kernel = options.kernel;
    const ForwardResult result = model.forward(context, inputs, forward);
    const Tensor& states = result.last_hidden_state ? result.last_hidden_state : result.hidden.back();
    const std::int64_t rows = states.shape()[0], length = states.shape()[1], width = states.shape()[2];
    Tensor vectors(DType::f32, {rows, width});
    std::vector<double> sum(static_cast<std::size_t>(width));
    for (std::int64_t row = 0; row < rows; ++row) {
        const std::vector<double> weights = pooling_weights(inputs, options.pooling, row);
        std::fill(sum.begin(), sum.end(), 0);
        double total = 0;
        for (std::int64_t t = 0; t < length; ++t) {
            const double weight = weights[static_cast<std::size_t>(t)];
            if (weight == 0) { continue; }
            total += weight;
            const float* state = states.as<float>() + (row * length + t) * width;
            for (std::int64_t n = 0; n < width; ++n) {
                sum[static_cast<std::size_t>(n)] += static_cast<double>(state[n]);
            }
        }
        double square = 0;
        for (double& x : sum) {
            x /= total;
            square += x * x;
        }
        const double scale = options.normalise ? 1 / std::max(std::sqrt(square), 1e-12) : 1;
        for (std::int64_t n = 0; n < width; ++n) {
            vectors.as<float>()[row * width + n] = static_cast<float>(sum[static_cast<std::size_t>(n)] * scale);
        }
    }
    return vectors;
}

Tensor embed_texts(Context& context, const Model& model, const Tokenizer& tokenizer, std::span<const std::string> texts,
                   const EmbedOptions& options) {
    constexpr std::size_t together = 32;
    std::vector<Encoding> encoded;
    for (const std::string& text : texts) {
        encoded.push_back(tokenizer.encode_all(text));
        if (encoded.back().ids.empty()) {
            refuse("embed_texts", "texts", "at least one token in each", "none in '" + text.substr(0, 40) + "'");
        }
    }
    const auto length_of = [&](std::size_t n) {
        return std::accumulate(encoded[n].attention_mask.begin(), encoded[n].attention_mask.end(), std::int64_t{0});
    };
    std::vector<std::size_t> order(texts.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return length_of(a) < length_of(b); });
    Tensor vectors(DType::f32, {static_cast<std::int64_t>(texts.size()), model.config().d_model});
    for (std::size_t begin = 0; begin < order.size(); begin += together) {
        const std::size_t end = std::min(begin + together, order.size());
        const auto rows = static_cast<std::int64_t>(end - begin);
        const std::int64_t length = std::max<std::int64_t>(1, length_of(order[end - 1]));
        Tensor ids(DType::i64, {rows, length}), mask(DType::i64, {rows, length}), types(DType::i64, {rows, length});
        for (std::size_t n = begin; n < end; ++n) {
            const Encoding& one = encoded[order[n]];
            std::int64_t at = static_cast<std::int64_t>(n - begin) * length;
            for (std::size_t t = 0; t < one.ids.size(); ++t) {
                if (one.attention_mask[t] == 0) { continue; }  // padding that the file asks for
                ids.as<std::int64_t>()[at] = one.ids[t];
                types.as<std::int64_t>()[at] = one.type_ids[t];
                mask.as<std::int64_t>()[at++] = 1;
            }
        }
        ForwardInputs inputs{.input_ids = ids, .attention_mask = mask};
        if (model.config().token_types > 0) { inputs.token_type_ids = types; }
        const Tensor part = embed(context, model, inputs, options);
        for (std::size_t n = begin; n < end; ++n) {
            const std::int64_t width = part.shape()[1];
            std::copy_n(part.as<float>() + static_cast<std::int64_t>(n - begin) * width, width,
                        vectors.as<float>() + static_cast<std::int64_t>(order[n]) * width);
        }
    }
    return vectors;
}

double TextScore::perplexity() const {
    return tokens > 0 ? std::exp(negative_log_likelihood / static_cast<double>(tokens)) : 1;
}

double TextScore::bits_per_byte(std::int64_t bytes) const {
    return bytes > 0 ? negative_log_likelihood / std::log(2.0) / static_cast<double>(bytes) : 0;
}

namespace {

struct Windows {
    std::int64_t window, stride;
};

Windows check_windows(const Model& model, const ScoreOptions& options) {
    const ModelConfig& config = model.config();
    if (config.kind != ModelKind::decoder) { refuse("score_text", "model", "a decoder", "another kind"); }
    constexpr std::int64_t usual = 1024;
    const std::int64_t made_for = config.max_positions > 0 ? config.max_positions : usual;
    const std::int64_t window = options.window > 0 ? options.window : std::min(made_for, usual);
    const std::int64_t stride = options.stride > 0 ? options.stride : std::max<std::int64_t>(1, window / 2);
    if (window < 2 || stride > window || options.window < 0 || options.stride < 0) {
        refuse("score_text", "window and stride", "a window of 2 or more and a stride of at most that",
               std::to_string(window) + " and " + std::to_string(stride));
    }
    return {window, stride};
}

/// Calls each(part, first, count): the ids of a window, and the tokens in it that no earlier window has predicted; the
/// logits of token `first` stand in row first - 1.
template <class Each>
void for_windows(std::span<const std::int64_t> ids, const Windows& w, const Each& each) {
    const auto size = static_cast<std::int64_t>(ids.size());
    std::int64_t done = 1;  // the first token has nothing before it
    for (std::int64_t begin = 0; done < size; begin += w.stride) {
        const std::int64_t end = std::min(begin + w.window, size);
        done = std::max(done, begin + 1);  // nor has the first of a window that begins where another ends
        if (done >= end) { continue; }
        each(ids.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)), done - begin,
             end - done);
        done = end;
    }
}

Tensor logits_of(Context& context, const Model& model, std::span<const std::int64_t> ids, const ScoreOptions& options) {
    const View part(ids.data(), {1, static_cast<std::int64_t>(ids.size())});
    ForwardOptions forward;
    forward.kernel = options.kernel;
    return model.forward(context, {.input_ids = part}, forward).logits;
}

std::span<const float> row_of(const Tensor& logits, std::int64_t row) {
    const std::int64_t vocabulary = logits.shape()[2];
    return {logits.as<float>() + row * vocabulary, static_cast<std::size_t>(vocabulary)};
}

/// Log-probabilities.
std::vector<double> log_softmax(std::span<const float> logits) {
    const double most = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const float logit : logits) { sum += std::exp(static_cast<double>(logit) - most); }
    std::vector<double> result;
    result.reserve(logits.size());
    for (const float logit : logits) { result.push_back(static_cast<double>(logit) - most - std::log(sum)); }
    return result;
}

}  // namespace

TextScore score_text(Context& context, const Model& model, std::span<const std::int64_t> ids,
                     const ScoreOptions& options) {
    TextScore score;
    for_windows(ids, check_windows(model, options),
                [&](std::span<const std::int64_t> part, std::int64_t first, std::int64_t count) {
                    const Tensor logits = logits_of(context, model, part, options);
                    for (std::int64_t t = first; t < first + count; ++t) {
                        score.negative_log_likelihood +=
                            surprise(row_of(logits, t - 1), part[static_cast<std::size_t>(t)]);
                    }
                    score.tokens += count;
                });
    return score;
}

ScoreComparison compare_scores(Context& context, const Model& model, const Model& original,
                               std::span<const std::int64_t> ids, const ScoreOptions& options) {
    if (model.config().vocab != original.config().vocab) {
        refuse("compare_scores", "original", "a vocabulary of " + std::to_string(model.config().vocab),
               std::to_string(original.config().vocab));
    }
    ScoreComparison result;
    double square = 0, logits_seen = 0, divergence = 0, agreed = 0;
    for_windows(ids, check_windows(model, options),
                [&](std::span<const std::int64_t> part, std::int64_t first, std::int64_t count) {
                    const Tensor mine = logits_of(context, model, part, options);
                    const Tensor theirs = logits_of(context, original, part, options);
                    for (std::int64_t t = first; t < first + count; ++t) {
                        const auto a = row_of(mine, t - 1), b = row_of(theirs, t - 1);
                        const std::vector<double> p = log_softmax(a), q = log_softmax(b);
                        const auto token = static_cast<std::size_t>(part[static_cast<std::size_t>(t)]);
                        result.score.negative_log_likelihood -= p[token];
                        result.original.negative_log_likelihood -= q[token];
                        for (std::size_t n = 0; n < a.size(); ++n) {
                            const double difference = static_cast<double>(a[n]) - static_cast<double>(b[n]);
                            square += difference * difference;
                            divergence += std::exp(q[n]) * (q[n] - p[n]);
                        }
                        agreed += first_largest(a) == first_largest(b) ? 1 : 0;
                        logits_seen += static_cast<double>(a.size());
                    }
                    result.score.tokens += count;
                });
    result.original.tokens = result.score.tokens;
    if (result.score.tokens > 0) {
        result.logit_error = std::sqrt(square / logits_seen);
        result.divergence = divergence / static_cast<double>(result.score.tokens);
        result.agreement = agreed / static_cast<double>(result.score.tokens);
    }
    return result;
}

}  // namespace heed
