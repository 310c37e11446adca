#include "generate/drafts.h"

#include "base/refuse.h"

#include <algorithm>

namespace heed {

Drafts::Drafts(const Model& model, const Speculation& speculation, const DecodingOptions& options)
    : speculation_(speculation) {
    if (speculation.tokens < 0 || speculation.ngram < 1) {
        refuse("ServingLoop", "speculation", "tokens of 0 or more and an n-gram of 1 or more", "less");
    }
    if (speculation.tokens == 0 || !speculation.draft) { return; }
    const ModelConfig& draft = speculation.draft->config();
    if (draft.vocab != model.config().vocab || draft.kind != ModelKind::decoder ||
        model.config().kind != ModelKind::decoder) {
        refuse("ServingLoop", "speculation.draft",
               "a decoder with " + std::to_string(model.config().vocab) + " tokens for a decoder",
               "one with " + std::to_string(draft.vocab));
    }
    for (const LayerConfig& layer : draft.decoder.layers) {
        if (layer.attention.core != AttentionCore::softmax) {
            refuse("ServingLoop", "speculation.draft", "softmax attention in every layer", "another kind");
        }
    }
    DecodingOptions room = options;
    room.tokens += room.sequences * (speculation.tokens + 1);
    decoding_.emplace(*speculation.draft, room);
}

std::vector<std::int64_t> Drafts::propose(Context& context, const Ask& ask) {
    const std::int64_t count = std::min(speculation_.tokens, ask.most);
    if (count <= 0) { return {}; }
    return decoding_ ? from_model(context, ask, count) : from_text(ask, count);
}

/// What followed the last place where the text had the same last tokens; shorter n-grams where longer ones are new.
std::vector<std::int64_t> Drafts::from_text(const Ask& ask, std::int64_t count) const {
    const auto size = static_cast<std::int64_t>(ask.text.size());
    for (std::int64_t n = std::min(speculation_.ngram, size - 1); n > 0; --n) {
        const auto tail = ask.text.last(static_cast<std::size_t>(n));
        for (std::int64_t at = size - n - 1; at >= 0; --at) {
            const auto here = ask.text.subspan(static_cast<std::size_t>(at));
            if (!std::equal(tail.begin(), tail.end(), here.begin())) { continue; }
            const auto follows = here.subspan(static_cast<std::size_t>(n));
            const std::size_t many = std::min(static_cast<std::size_t>(count), follows.size());
            return {follows.begin(), follows.begin() + static_cast<std::ptrdiff_t>(many)};
        }
    }
    return {};
}

/// Draws with the random numbers that the model itself will draw with, so that two models that agree propose alike.
std::vector<std::int64_t> Drafts::from_model(Context& context, const Ask& ask, std::int64_t count) {
    CachedSequence& sequence = ask.state->sequence;
    if (!sequence) { sequence = decoding_->create(); }
    const auto size = static_cast<std::int64_t>(ask.text.size());
    if (sequence.length() >= size) { sequence.truncate(size - 1); }  // what it guessed last time and did not come
    std::vector<std::int64_t> text(ask.text.begin(), ask.text.end()), guessed;
    std::vector<std::int64_t> next(text.begin() + sequence.length(), text.end());
    try {
        while (static_cast<std::int64_t>(guessed.size()) < count) {
            DecodingBatch batch{
                .sequences = {&sequence}, .tokens = next, .counts = {static_cast<std::int64_t>(next.size())}};
            const Tensor logits = decoding_->step(context, batch);
            const std::span<const float> row(logits.as<float>(), static_cast<std::size_t>(logits.shape()[1]));
            const auto step = static_cast<std::uint64_t>(ask.made) + guessed.size();
            guessed.push_back(sample_token(row, text, *ask.sampling, {.sequence = ask.sequence, .step = step}));
            text.push_back(guessed.back());
            next = {guessed.back()};
        }
    } catch (const CacheFull&) { forget(*ask.state); }  // no guess, or a shorter one, is always right
    return guessed;
}

}  // namespace heed
