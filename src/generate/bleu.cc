#include <heed/evaluate.h>

#include "base/refuse.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "text/unicode.h"
#include "text/utf8.h"

namespace heed {
namespace {

constexpr int longest = 4;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Punctuation and symbols that 13a sets apart wherever they stand.
bool stands_alone(char c) {
    return (c >= '{' && c <= '~') || (c >= '[' && c <= '`') || (c >= ' ' && c <= '&') || (c >= '(' && c <= '+') ||
           (c >= ':' && c <= '@') || c == '/';
}

/// White space as Python counts it: Unicode's, and the separators of ASCII.
bool separates(char32_t code) { return text::is_space(code) || (code >= 0x1C && code <= 0x1F); }

std::string without_space_behind(const std::string& text) {
    std::size_t end = text.size();
    while (end > 0) {
        const auto [code, size] = text::character_before(text, end);
        if (!separates(code)) { break; }
        end -= static_cast<std::size_t>(size);
    }
    return text.substr(0, end);
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

/// Spaces around what stands in the text where a character of one kind is followed by one of another. As with a regular
/// expression, a character belongs to one such pair at most.
template <class First, class Second>
std::string with_pairs_apart(const std::string& text, const First& first, const Second& second, const char* before,
                             const char* behind) {
    std::string result;
    for (std::size_t n = 0; n < text.size(); ++n) {
        if (n + 1 == text.size() || !first(text[n]) || !second(text[n + 1])) {
            result += text[n];
            continue;
        }
        result += before;
        result += text[n];
        result += ' ';
        result += text[++n];
        result += behind;
    }
    return result;
}

/// Symbols are set apart; then a period or comma where no digit stands before it, where none stands behind it, and a
/// dash behind a digit.
std::vector<std::string> words_of(const std::string& text) {
    const auto is_point = [](char c) { return c == '.' || c == ','; };
    const auto no_digit = [](char c) { return !is_digit(c); };
    std::string spaced;
    for (const char c : " " + with_entities_replaced(without_space_behind(text)) + " ") {
        spaced += stands_alone(c) ? std::string{' ', c, ' '} : std::string{c};
    }
    spaced = with_pairs_apart(spaced, no_digit, is_point, "", " ");
    spaced = with_pairs_apart(spaced, is_point, no_digit, " ", "");
    spaced = with_pairs_apart(
        spaced, is_digit, [](char c) { return c == '-'; }, "", " ");
    std::vector<std::string> words;
    std::size_t begin = 0;
    for (std::size_t at = 0; at <= spaced.size();) {
        const auto [code, size] = at < spaced.size() ? text::character_at(spaced, at) : text::Character{U' ', 1};
        if (separates(code)) {
            if (at > begin) { words.push_back(spaced.substr(begin, at - begin)); }
            begin = at + static_cast<std::size_t>(size);
        }
        at += static_cast<std::size_t>(size);
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
