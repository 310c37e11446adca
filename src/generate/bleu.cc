#include <heed/evaluate.h>

#include "base/refuse.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

namespace heed {
namespace {

constexpr int longest = 4;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Punctuation and symbols that 13a sets apart wherever they stand.
bool stands_alone(char c) {
    return (c >= '{' && c <= '~') || (c >= '[' && c <= '`') || (c >= ' ' && c <= '&') || (c >= '(' && c <= '+') ||
           (c >= ':' && c <= '@') || c == '/';
}

std::string with_entities_replaced(std::string text) {
    constexpr std::pair<const char*, const char*> entities[] = {
        {"<skipped>", ""}, {"-\n", ""}, {"\n", " "}, {"&quot;", "\""}, {"&amp;", "&"}, {"&lt;", "<"}, {"&gt;", ">"}};
    for (const auto& [from, to] : entities) {
        const std::string what(from);
        for (std::size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += std::string(to).size()) {
            text.replace(at, what.size(), to);
        }
    }
    return text;
}

/// A period or comma is set apart unless digits stand on both sides; a dash behind a digit is.
std::vector<std::string> words_of(const std::string& text) {
    const std::string given = " " + with_entities_replaced(text) + " ";
    std::string spaced;
    for (std::size_t n = 0; n < given.size(); ++n) {
        const char c = given[n];
        const char before = n > 0 ? given[n - 1] : ' ', after = n + 1 < given.size() ? given[n + 1] : ' ';
        const bool point = (c == '.' || c == ',') && !(is_digit(before) && is_digit(after));
        const bool dash = c == '-' && is_digit(before);
        if (stands_alone(c) || point || dash) {
            spaced += ' ';
            spaced += c;
            spaced += ' ';
        } else {
            spaced += c;
        }
    }
    std::vector<std::string> words;
    for (std::size_t at = 0; at < spaced.size();) {
        const std::size_t begin = spaced.find_first_not_of(" \t\r\n\f\v", at);
        if (begin == std::string::npos) { break; }
        const std::size_t end = std::min(spaced.find_first_of(" \t\r\n\f\v", begin), spaced.size());
        words.push_back(spaced.substr(begin, end - begin));
        at = end;
    }
    return words;
}

using Counts = std::map<std::vector<std::string>, std::int64_t>;

Counts ngrams(const std::vector<std::string>& words, int size) {
    Counts counts;
    for (std::size_t n = 0; n + static_cast<std::size_t>(size) <= words.size(); ++n) {
        ++counts[{words.begin() + static_cast<std::ptrdiff_t>(n),
                  words.begin() + static_cast<std::ptrdiff_t>(n) + size}];
    }
    return counts;
}

}  // namespace

Bleu bleu(std::span<const std::string> hypotheses, std::span<const std::string> references) {
    if (hypotheses.size() != references.size()) {
        refuse("bleu", "references", std::to_string(hypotheses.size()) + ", one for each hypothesis",
               std::to_string(references.size()));
    }
    Bleu result;
    std::array<std::int64_t, longest> right{}, all{};
    for (std::size_t n = 0; n < hypotheses.size(); ++n) {
        const std::vector<std::string> given = words_of(hypotheses[n]), wanted = words_of(references[n]);
        result.hypothesis_words += static_cast<std::int64_t>(given.size());
        result.reference_words += static_cast<std::int64_t>(wanted.size());
        for (int size = 1; size <= longest; ++size) {
            const auto place = static_cast<std::size_t>(size - 1);
            const Counts known = ngrams(wanted, size);
            for (const auto& [ngram, count] : ngrams(given, size)) {
                const auto found = known.find(ngram);
                right[place] += found == known.end() ? 0 : std::min(count, found->second);
                all[place] += count;
            }
        }
    }
    if (result.hypothesis_words == 0 || right[0] == 0) { return result; }
    double halves = 1, logs = 0;
    for (std::size_t n = 0; n < longest; ++n) {
        if (all[n] == 0) { return result; }  // no text is long enough
        if (right[n] == 0) { halves *= 2; }
        const double hits = right[n] == 0 ? 1 / halves : static_cast<double>(right[n]);
        result.precisions[n] = 100 * hits / static_cast<double>(all[n]);
        logs += std::log(result.precisions[n]) / longest;
    }
    const double ratio = static_cast<double>(result.reference_words) / static_cast<double>(result.hypothesis_words);
    result.brevity_penalty = ratio > 1 ? std::exp(1 - ratio) : 1;
    result.score = std::min(100.0, result.brevity_penalty * std::exp(logs));
    return result;
}

}  // namespace heed
