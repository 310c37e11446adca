#include <functional>
#include <utility>

#include "text/json_field.h"
#include "text/pattern.h"
#include "text/pipeline.h"
#include "text/unicode.h"

namespace heed::text {
namespace {

/// Parts of a piece from left to right without gaps; whether the delimiter matched.
struct Part {
    Span span;
    bool match = false;
};

enum class Behaviour { removed, isolated, merged_with_previous, merged_with_next, contiguous };

/// A match joins its neighbour if the neighbour is no match itself.
std::vector<Part> joined_with_previous(const std::vector<Part>& parts) {
    std::vector<Part> result;
    bool previous = false;
    for (const Part& part : parts) {
        if (part.match && !previous && !result.empty()) {
            result.back().span.end = part.span.end;
        } else {
            result.push_back({part.span, false});
        }
        previous = part.match;
    }
    return result;
}

std::vector<Part> joined_with_next(const std::vector<Part>& parts) {
    std::vector<Part> result;
    bool previous = false;
    for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
        if (part->match && !previous && !result.empty()) {
            result.back().span.begin = part->span.begin;
        } else {
            result.push_back({part->span, false});
        }
        previous = part->match;
    }
    return {result.rbegin(), result.rend()};
}

std::vector<Part> joined_with_same(const std::vector<Part>& parts) {
    std::vector<Part> result;
    bool previous = false;
    for (const Part& part : parts) {
        if (part.match == previous && !result.empty()) {
            result.back().span.end = part.span.end;
        } else {
            result.push_back({part.span, false});
        }
        previous = part.match;
    }
    return result;
}

/// Appends the non-empty parts as pieces.
void add_parts(std::vector<Piece>& to, const Piece& of, const std::vector<Part>& parts, Behaviour behaviour) {
    const auto add = [&](const Part& part) {
        if (part.span.begin == part.span.end || part.match) { return; }
        to.push_back({of.begin + part.span.begin, of.begin + part.span.end, of.first && part.span.begin == 0});
    };
    switch (behaviour) {
        case Behaviour::removed:
            for (const Part& part : parts) { add(part); }
            break;
        case Behaviour::isolated:
            for (const Part& part : parts) { add({part.span, false}); }
            break;
        case Behaviour::merged_with_previous:
            for (const Part& part : joined_with_previous(parts)) { add(part); }
            break;
        case Behaviour::merged_with_next:
            for (const Part& part : joined_with_next(parts)) { add(part); }
            break;
        case Behaviour::contiguous:
            for (const Part& part : joined_with_same(parts)) { add(part); }
            break;
    }
}

Behaviour read_behaviour(const JsonField& field) {
    const std::string& name = field.text();
    if (name == "Removed") { return Behaviour::removed; }
    if (name == "Isolated") { return Behaviour::isolated; }
    if (name == "MergedWithPrevious") { return Behaviour::merged_with_previous; }
    if (name == "MergedWithNext") { return Behaviour::merged_with_next; }
    if (name == "Contiguous") { return Behaviour::contiguous; }
    field.fail("Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

/// Matches, and what lies between them.
std::vector<Part> parts_of(std::size_t size, const std::vector<Span>& found, bool invert) {
    std::vector<Part> parts;
    parts.reserve(found.size() * 2 + 1);
    std::size_t at = 0;
    for (const Span& span : found) {
        if (span.begin > at) { parts.push_back({{at, span.begin}, invert}); }
        parts.push_back({span, !invert});
        at = span.end;
    }
    if (at < size) { parts.push_back({{at, size}, invert}); }
    return parts;
}

void split_by_pattern(Pieces& pieces, const Pattern& pattern, Behaviour behaviour, bool invert) {
    Regex::Scratch scratch;
    std::vector<Span> found;
    std::vector<Piece> result;
    result.reserve(pieces.text.size() / 4 + pieces.pieces.size());
    for (const Piece& piece : pieces.pieces) {
        const std::string_view text = std::string_view(pieces.text).substr(piece.begin, piece.end - piece.begin);
        pattern.find_all(text, scratch, found);
        add_parts(result, piece, parts_of(text.size(), found, invert), behaviour);
    }
    pieces.pieces = std::move(result);
}

/// Each character for which `test` holds is a match of its own.
template <class Test>
void split_by_character(Pieces& pieces, Test&& test, Behaviour behaviour) {
    std::vector<Span> found;
    std::vector<Piece> result;
    for (const Piece& piece : pieces.pieces) {
        const std::string_view text = std::string_view(pieces.text).substr(piece.begin, piece.end - piece.begin);
        found.clear();
        for (std::size_t at = 0; at < text.size();) {
            const Character next = character_at(text, at);
            const std::size_t end = at + static_cast<std::size_t>(next.size);
            if (test(next.code)) { found.push_back({at, end}); }
            at = end;
        }
        add_parts(result, piece, parts_of(text.size(), found, false), behaviour);
    }
    pieces.pieces = std::move(result);
}

/// Each piece's text becomes what `change` makes of it.
void change_pieces(Pieces& pieces, const std::function<std::string(std::string_view, bool first)>& change) {
    Pieces result;
    result.text.reserve(pieces.text.size() * 2);
    for (const Piece& piece : pieces.pieces) {
        const std::size_t begin = result.text.size();
        result.text += change(std::string_view(pieces.text).substr(piece.begin, piece.end - piece.begin), piece.first);
        result.pieces.push_back({begin, result.text.size(), piece.first});
    }
    pieces = std::move(result);
}

class Split final : public PreTokenizer {
public:
    explicit Split(const JsonField& field)
        : pattern_(field["pattern"]),
          behaviour_(read_behaviour(field["behavior"])),
          invert_(field["invert"].flag_or(false)) {}
    void apply(Pieces& pieces) const override { split_by_pattern(pieces, pattern_, behaviour_, invert_); }

private:
    Pattern pattern_;
    Behaviour behaviour_;
    bool invert_;
};

class ByteLevel final : public PreTokenizer {
public:
    explicit ByteLevel(const JsonField& field)
        : prefix_space_(field["add_prefix_space"].flag_or(true)), split_(field["use_regex"].flag_or(true)) {}

    void apply(Pieces& pieces) const override {
        if (prefix_space_) {
            change_pieces(pieces, [](std::string_view text, bool) {
                return text.substr(0, 1) == " " ? std::string(text) : " " + std::string(text);
            });
        }
        if (split_) { split_by_pattern(pieces, pattern_, Behaviour::isolated, false); }
        if (!leave_bytes_) {
            change_pieces(pieces, [](std::string_view text, bool) { return bytes_as_characters(text); });
        }
    }
    bool ends_with_bytes() const override { return true; }
    void leave_bytes() override { leave_bytes_ = true; }

private:
    Pattern pattern_{gpt2_pattern};
    bool prefix_space_, split_, leave_bytes_ = false;
};

class Metaspace final : public PreTokenizer {
public:
    explicit Metaspace(const JsonField& field) : split_(field["split"].flag_or(true)) {
        append(mark_, field["replacement"].character());
        scheme_ = field["prepend_scheme"].text_or("always");
        if (scheme_ != "always" && scheme_ != "first" && scheme_ != "never") {
            field["prepend_scheme"].fail("always, first or never");
        }
        if (!field["add_prefix_space"].flag_or(true) && scheme_ != "never") {
            field["add_prefix_space"].fail("what prepend_scheme says, which is always where there is none");
        }
    }

    void apply(Pieces& pieces) const override {
        change_pieces(pieces, [&](std::string_view text, bool first) {
            std::string result;
            for (const char c : text) {
                if (c == ' ') {
                    result += mark_;
                } else {
                    result += c;
                }
            }
            const bool wanted = scheme_ == "always" || (scheme_ == "first" && first);
            if (wanted && result.compare(0, mark_.size(), mark_) != 0) { result.insert(0, mark_); }
            return result;
        });
        if (!split_) { return; }
        const char32_t mark = character_at(mark_, 0).code;
        split_by_character(
            pieces, [&](char32_t code) { return code == mark; }, Behaviour::merged_with_next);
    }

private:
    std::string mark_, scheme_;
    bool split_;
};

bool is_ascii_punctuation(char32_t code) {
    return (code >= 33 && code <= 47) || (code >= 58 && code <= 64) || (code >= 91 && code <= 96) ||
           (code >= 123 && code <= 126);
}

/// As Hugging Face's tokenizers know it: of version 8 of Unicode.
bool is_punctuation(char32_t code) {
    static const Categories punctuation = *categories_named("P");
    return is_ascii_punctuation(code) || (is_in(punctuation, code) && age_of(code) <= 8);
}

class BertPreTokenizer final : public PreTokenizer {
public:
    void apply(Pieces& pieces) const override {
        split_by_character(pieces, is_space, Behaviour::removed);
        split_by_character(pieces, is_punctuation, Behaviour::isolated);
    }
};

class Punctuation final : public PreTokenizer {
public:
    explicit Punctuation(const JsonField& field)
        : behaviour_(field["behavior"].is_null() ? Behaviour::isolated : read_behaviour(field["behavior"])) {}
    void apply(Pieces& pieces) const override { split_by_character(pieces, is_punctuation, behaviour_); }

private:
    Behaviour behaviour_;
};

/// Runs of word characters and runs of others; white space is left out.
class Whitespace final : public PreTokenizer {
public:
    void apply(Pieces& pieces) const override {
        split_by_character(pieces, is_space, Behaviour::removed);
        split_by_character(
            pieces, [](char32_t code) { return is_word(code) || code == 0x200C || code == 0x200D; },
            Behaviour::contiguous);
    }
};

class WhitespaceSplit final : public PreTokenizer {
public:
    void apply(Pieces& pieces) const override { split_by_character(pieces, is_space, Behaviour::removed); }
};

class Digits final : public PreTokenizer {
public:
    explicit Digits(const JsonField& field) : single_(field["individual_digits"].flag_or(false)) {}
    void apply(Pieces& pieces) const override {
        static const Categories numbers = *categories_named("N");
        split_by_character(
            pieces, [](char32_t code) { return is_in(numbers, code); },
            single_ ? Behaviour::isolated : Behaviour::contiguous);
    }

private:
    bool single_;
};

class CharDelimiterSplit final : public PreTokenizer {
public:
    explicit CharDelimiterSplit(const JsonField& field) : delimiter_(field["delimiter"].character()) {}
    void apply(Pieces& pieces) const override {
        split_by_character(
            pieces, [&](char32_t code) { return code == delimiter_; }, Behaviour::removed);
    }

private:
    char32_t delimiter_;
};

class FixedLength final : public PreTokenizer {
public:
    explicit FixedLength(const JsonField& field) : length_(field["length"].number_or(5, 1, 1 << 30)) {}
    void apply(Pieces& pieces) const override {
        std::vector<Piece> result;
        for (const Piece& piece : pieces.pieces) {
            std::size_t begin = piece.begin;
            while (begin < piece.end) {
                std::size_t end = begin;
                for (std::int64_t n = 0; n < length_ && end < piece.end; ++n) {
                    end += static_cast<std::size_t>(character_at(pieces.text, end).size);
                }
                result.push_back({begin, end, piece.first && begin == piece.begin});
                begin = end;
            }
        }
        pieces.pieces = std::move(result);
    }

private:
    std::int64_t length_;
};

/// Between scripts; kana counts as Han, a space belongs to any, and so do characters that Hugging Face's table, of
/// version 9 of Unicode, does not name.
class UnicodeScripts final : public PreTokenizer {
public:
    void apply(Pieces& pieces) const override {
        constexpr int any = -2, none_yet = -3, known_age = 9;
        std::vector<Piece> result;
        for (const Piece& piece : pieces.pieces) {
            int last = none_yet;
            std::size_t begin = piece.begin;
            bool begun = false;
            for (std::size_t at = piece.begin; at < piece.end;) {
                const Character next = character_at(pieces.text, at);
                const int named = next.code == U' ' || age_of(next.code) > known_age ? -1 : script_like_han(next.code);
                const int script = named < 0 ? any : named;
                if (script != any && last != any && last != script) {
                    if (begun) { result.push_back({begin, at, piece.first && begin == piece.begin}); }
                    begin = at;
                    begun = true;
                }
                if (script != any) { last = script; }
                at += static_cast<std::size_t>(next.size);
            }
            if (begun) { result.push_back({begin, piece.end, piece.first && begin == piece.begin}); }
        }
        pieces.pieces = std::move(result);
    }

private:
    static int script_like_han(char32_t code) {
        static const int han = *script_named("Han"), hiragana = *script_named("Hiragana"),
                         katakana = *script_named("Katakana");
        // Two signs that Unicode gave to Armenian and Arabic after version 9.
        static const int common = *script_named("Common");
        if (code == 0x589 || code == 0x61C) { return common; }
        const int script = script_of(code);
        return code == 0x30FC || script == hiragana || script == katakana ? han : script;
    }
};

class PreTokenizerSequence final : public PreTokenizer {
public:
    explicit PreTokenizerSequence(const JsonField& field) {
        field["pretokenizers"].for_each([&](const JsonField& one) {
            if (auto part = read_pre_tokenizer(one)) { parts_.push_back(std::move(part)); }
        });
    }
    void apply(Pieces& pieces) const override {
        for (const auto& part : parts_) { part->apply(pieces); }
    }
    bool ends_with_bytes() const override { return !parts_.empty() && parts_.back()->ends_with_bytes(); }
    void leave_bytes() override { parts_.back()->leave_bytes(); }

private:
    std::vector<std::unique_ptr<PreTokenizer>> parts_;
};

}  // namespace

std::unique_ptr<PreTokenizer> read_pre_tokenizer(const JsonField& field) {
    if (field.is_null()) { return nullptr; }
    const std::string& type = field["type"].text();
    if (type == "Sequence") { return std::make_unique<PreTokenizerSequence>(field); }
    if (type == "ByteLevel") { return std::make_unique<ByteLevel>(field); }
    if (type == "Split") { return std::make_unique<Split>(field); }
    if (type == "Metaspace") { return std::make_unique<Metaspace>(field); }
    if (type == "BertPreTokenizer") { return std::make_unique<BertPreTokenizer>(); }
    if (type == "Whitespace") { return std::make_unique<Whitespace>(); }
    if (type == "WhitespaceSplit") { return std::make_unique<WhitespaceSplit>(); }
    if (type == "Punctuation") { return std::make_unique<Punctuation>(field); }
    if (type == "Digits") { return std::make_unique<Digits>(field); }
    if (type == "CharDelimiterSplit") { return std::make_unique<CharDelimiterSplit>(field); }
    if (type == "FixedLength") { return std::make_unique<FixedLength>(field); }
    if (type == "UnicodeScripts") { return std::make_unique<UnicodeScripts>(); }
    field["type"].fail("a pre-tokeniser that heed knows");
}

}  // namespace heed::text
