#include "text/added_tokens.h"

#include <algorithm>

#include "text/json_field.h"
#include "text/unicode.h"

namespace heed::text {
namespace {

constexpr std::int64_t largest_id = 0x7FFFFFFE;
constexpr std::size_t longest_token = 4096;  // finding one costs time in proportion

AddedToken read_added(const JsonField& field) {
    const bool special = field["special"].flag_or(false);
    AddedToken token{.id = field["id"].number(0, largest_id),
                     .content = field["content"].text(),
                     .single_word = field["single_word"].flag_or(false),
                     .lstrip = field["lstrip"].flag_or(false),
                     .rstrip = field["rstrip"].flag_or(false),
                     .normalized = field["normalized"].flag_or(!special),
                     .special = special};
    if (token.content.size() > longest_token) { field["content"].fail("at most 4096 bytes"); }
    return token;
}

std::size_t spaces_begin(std::string_view text, std::size_t end, std::size_t least) {
    while (end > least) {
        const Character last = character_before(text, end);
        if (!is_space(last.code)) { break; }
        end -= static_cast<std::size_t>(last.size);
    }
    return std::max(end, least);
}

std::size_t spaces_end(std::string_view text, std::size_t at) {
    while (at < text.size()) {
        const Character next = character_at(text, at);
        if (!is_space(next.code)) { break; }
        at += static_cast<std::size_t>(next.size);
    }
    return at;
}

bool is_joined(char32_t code) { return is_word(code) || code == 0x200C || code == 0x200D; }

bool stands_alone(std::string_view text, const Span& span) {
    const bool before = span.begin > 0 && is_joined(character_before(text, span.begin).code);
    const bool after = span.end < text.size() && is_joined(character_at(text, span.end).code);
    return !before && !after;
}

}  // namespace

AddedTokens::AddedTokens(const JsonField& field, const Model& model, const Normalizer* normalizer) {
    if (field.is_null()) { return; }
    std::int64_t next = model.size();  // for tokens whose id is not the model's
    field.for_each([&](const JsonField& one) {
        AddedToken token = read_added(one);
        if (token.content.empty()) { return; }
        // As Hugging Face's: the model's id where it knows the token; else the next one behind the model's, whatever
        // the file says.
        const auto known = by_content_.find(token.content);
        if (known != by_content_.end()) {
            token.id = tokens_[known->second].id;
        } else if (const auto id = model.id_of(token.content)) {
            token.id = *id;
        } else {
            token.id = next++;
            if (model.token_of(token.id)) {
                one["content"].fail("a model whose ids have no gaps, for tokens behind them",
                                    "the id " + std::to_string(token.id) + " twice");
            }
        }
        if (token.special) { special_.insert(token.content); }
        by_content_[token.content] = tokens_.size();
        by_id_[token.id] = tokens_.size();
        tokens_.push_back(std::move(token));
    });
    std::vector<std::pair<std::string, std::int32_t>> raw, normalized;
    for (const auto& [id, index] : by_id_) {
        const AddedToken& token = tokens_[index];
        if (!token.normalized) {
            raw.emplace_back(token.content, static_cast<std::int32_t>(index));
            continue;
        }
        std::string text = token.content;
        if (normalizer != nullptr) { normalizer->apply(text); }
        if (text != token.content) { spelled_[id] = text; }
        normalized.emplace_back(std::move(text), static_cast<std::int32_t>(index));
    }
    const auto later = [](const auto& a, const auto& b) { return a.second < b.second; };
    std::sort(raw.begin(), raw.end(), later);
    std::sort(normalized.begin(), normalized.end(), later);
    raw_ = Trie(std::move(raw));
    normalized_ = Trie(std::move(normalized));
}

const AddedToken* AddedTokens::find(std::int64_t id) const {
    const auto found = by_id_.find(id);
    return found == by_id_.end() ? nullptr : &tokens_[found->second];
}

const AddedToken* AddedTokens::find(std::string_view content) const {
    const auto found = by_content_.find(std::string(content));
    return found == by_content_.end() ? nullptr : &tokens_[found->second];
}

std::string_view AddedTokens::spelling(const AddedToken& token) const {
    const auto found = spelled_.find(token.id);
    return found == spelled_.end() ? std::string_view(token.content) : std::string_view(found->second);
}

std::vector<Segment> AddedTokens::split(std::string_view text, const Trie& trie, bool allow_special) const {
    std::vector<Segment> segments;
    std::size_t done = 0;
    for (std::size_t at = 0; !trie.empty() && at < text.size();) {
        const auto [length, index] = trie.longest(text, at);
        if (length == 0) {
            ++at;
            continue;
        }
        Span span{at, at + length};
        at += length;
        const AddedToken& token = tokens_[static_cast<std::size_t>(index)];
        const bool ignored = !allow_special && is_special(token.content);
        if (ignored || (token.single_word && !stands_alone(text, span))) { continue; }
        if (token.lstrip) { span.begin = spaces_begin(text, span.begin, done); }
        if (token.rstrip) { span.end = spaces_end(text, span.end); }
        if (span.begin > done) { segments.push_back({{done, span.begin}, -1}); }
        // What rstrip has taken may hold another token, which then counts as well, unless its lstrip leaves nothing of
        // it: as in Hugging Face's.
        if (span.begin < span.end) { segments.push_back({span, token.id}); }
        done = span.end;
    }
    if (done < text.size()) { segments.push_back({{done, text.size()}, -1}); }
    return segments;
}

}  // namespace heed::text
