#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "text/pipeline.h"
#include "text/regex.h"
#include "text/trie.h"

namespace heed::text {

struct AddedToken {
    std::int64_t id = 0;
    std::string content;
    bool single_word = false, lstrip = false, rstrip = false, normalized = true, special = false;
};

/// A part of a text: an added token, or text for the model.
struct Segment {
    Span span;
    std::int64_t id = -1;
};

/// Tokens that are found before the model sees the text.
class AddedTokens {
public:
    AddedTokens() = default;
    AddedTokens(const JsonField& field, const Model& model, const Normalizer* normalizer);

    /// Those that are looked for in the text as it came, and those in the normalised text.
    std::vector<Segment> split_raw(std::string_view text, bool allow_special) const {
        return split(text, raw_, allow_special);
    }
    std::vector<Segment> split_normalized(std::string_view text, bool allow_special) const {
        return split(text, normalized_, allow_special);
    }

    const std::vector<AddedToken>& all() const { return tokens_; }
    const AddedToken* find(std::int64_t id) const;
    const AddedToken* find(std::string_view content) const;
    /// What decoders see: as normalised, where it is.
    std::string_view spelling(const AddedToken& token) const;
    bool is_special(std::string_view token) const { return special_.count(std::string(token)) > 0; }

private:
    std::vector<Segment> split(std::string_view text, const Trie& trie, bool allow_special) const;

    std::vector<AddedToken> tokens_;
    std::unordered_map<std::int64_t, std::size_t> by_id_;
    std::unordered_map<std::string, std::size_t> by_content_;
    std::unordered_map<std::int64_t, std::string> spelled_;
    std::unordered_set<std::string> special_;
    Trie raw_, normalized_;  // values: indices of tokens_
};

}  // namespace heed::text
