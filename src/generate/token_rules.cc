#include <heed/generation_config.h>

#include "base/refuse.h"

#include <algorithm>
#include <limits>

namespace heed {
namespace {

void hide(std::span<float> logits, std::int64_t token) {
    if (token >= 0 && token < static_cast<std::int64_t>(logits.size())) {
        logits[static_cast<std::size_t>(token)] = -std::numeric_limits<float>::infinity();
    }
}

/// Whatever followed the last n - 1 tokens before does not follow them again.
void hide_repeated(std::span<const std::int64_t> text, std::size_t n, std::span<float> logits) {
    if (text.size() < n) { return; }
    const auto end = text.last(n - 1);
    for (std::size_t at = 0; at + n <= text.size(); ++at) {
        if (std::ranges::equal(text.subspan(at, n - 1), end)) { hide(logits, text[at + n - 1]); }
    }
}

/// The last token of a sequence whose others end the text. As in transformers, a sequence longer than the text has no
/// effect, and an end token alone is never forbidden.
void hide_word(const TextSoFar& text, std::span<const std::int64_t> word, std::span<float> logits) {
    if (word.size() == 1 && std::ranges::find(text.eos, word[0]) != text.eos.end()) { return; }
    if (word.empty() || word.size() > text.tokens.size()) { return; }
    const auto before = word.first(word.size() - 1);
    if (std::ranges::equal(text.tokens.last(before.size()), before)) { hide(logits, word.back()); }
}

}  // namespace

void hide_tokens(const TokenRules& rules, const TextSoFar& text, std::span<float> logits) {
    if (rules.empty()) { return; }
    if (rules.no_repeat_ngram_size > 0) {
        hide_repeated(text.tokens, static_cast<std::size_t>(rules.no_repeat_ngram_size), logits);
    }
    for (const auto& word : rules.bad_words_ids) { hide_word(text, word, logits); }
    if (static_cast<std::int64_t>(text.tokens.size()) < rules.min_length) {
        for (const std::int64_t id : text.eos) { hide(logits, id); }
    }
    for (const std::int64_t id : rules.suppress_tokens) { hide(logits, id); }
    const bool second = text.forced_first && static_cast<std::int64_t>(text.tokens.size()) - text.made <= 1;
    if (text.made == (second ? 1 : 0)) {
        for (const std::int64_t id : rules.begin_suppress_tokens) { hide(logits, id); }
    }
}

void refuse_unknown(const char* function, const GenerationConfig& config, bool sampled) {
    const auto check = [&](const std::vector<std::string>& names) {
        if (!names.empty()) { refuse(function, "generation_config.json", "settings that heed has", names.front()); }
    };
    check(config.unknown);
    if (sampled) { check(config.unknown_sampled); }
}

}  // namespace heed
