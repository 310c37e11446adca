#pragma once
#include <bitset>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "text/unicode.h"

namespace heed::text {

/// Superscripts and fractions of Latin-1, which Oniguruma's \w and \b take for letters.
inline bool is_latin_number(char32_t code) {
    return code == 0xB2 || code == 0xB3 || code == 0xB9 || (code >= 0xBC && code <= 0xBE);
}
constexpr int latin_numbers = 1;  // of an item `word`: with those

/// What one character may be: a bit for each ASCII character, tests for all others.
struct CharacterSet {
    struct Item {
        enum class Kind : std::uint8_t { range, categories, script, space, word, set } kind = Kind::range;
        bool negated = false;
        char32_t first = 0, last = 0;  // range
        Categories categories = 0;
        int number = 0;  // script, or index of a nested set
    };
    std::vector<Item> items;                  // any of them
    std::vector<std::vector<Item>> and_also;  // and any of each of these (&&)
    std::vector<CharacterSet> nested;
    bool negated = false;
    std::uint64_t ascii[2] = {0, 0};

    /// After the items are complete.
    void finish();
    bool has(char32_t code) const { return code < 128 ? (ascii[code / 64] >> (code % 64) & 1U) != 0 : tested(code); }

private:
    bool tested(char32_t code) const;
    bool any_of(const std::vector<Item>& list, char32_t code) const;
};

/// A part of the text, in bytes.
struct Span {
    std::size_t begin = 0, end = 0;
};

/// The expressions that tokenizers split with, in the dialect that Hugging Face's tokenizers use (Oniguruma, Ruby
/// syntax) as far as one can know a match by its end: classes, Unicode properties, choices, greedy, lazy and possessive
/// repeats, atomic groups, looking ahead and behind. Captures that are referred to and the like are refused by Error.
/// Matching takes time in proportion to the text for sane expressions, and is given up with an Error for others.
class Regex {
public:
    explicit Regex(std::string_view pattern);

    /// Of a caller, for many calls.
    class Scratch {
        friend class Regex;
        struct Resume {
            std::uint32_t op;
            std::uint32_t choice;   // next alternative; or 0
            std::size_t at, least;  // a run may give back down to `least`
        };
        std::vector<Resume> stack_;
        std::size_t steps_ = 0, limit_ = 0;
    };

    /// All matches from left to right that do not overlap, as Oniguruma's iterator gives them.
    void find_all(std::string_view text, Scratch& scratch, std::vector<Span>& found) const;

private:
    friend class RegexCompiler;
    enum class Code : std::uint8_t {
        one,
        run,
        choose,
        jump,
        look,
        atomic,
        line_begin,
        line_end,
        text_begin,
        text_end,
        last_line_end,
        word_edge,
        no_word_edge,
        match
    };
    enum class Greed : std::uint8_t { greedy, lazy, possessive };
    struct Op {
        Code code = Code::match;
        Greed greed = Greed::greedy;
        bool negated = false, behind = false;
        std::uint32_t set = 0;           // one, run
        std::uint32_t target = 0;        // jump, look and atomic (where to go on); choose: index of its choices
        std::uint32_t min = 0, max = 0;  // run; look behind: how many characters back
    };
    struct Choice {
        std::uint32_t op;
        std::bitset<256> first;  // bytes with which it can begin; all where it can be empty
    };

    using Visited = std::unordered_set<std::uint64_t>;
    bool match(std::string_view text, std::uint32_t op, std::size_t at, Scratch& scratch, std::size_t& end) const;
    bool step(std::string_view text, Scratch& scratch, std::uint32_t& op, std::size_t& at) const;
    bool step_run(std::string_view text, Scratch& scratch, std::uint32_t& op, std::size_t& at) const;
    bool step_choice(std::string_view text, Scratch& scratch, std::uint32_t& op, std::size_t at,
                     std::uint32_t from) const;
    bool step_look(std::string_view text, Scratch& scratch, const Op& look, std::uint32_t body, std::size_t at) const;
    bool resume(std::string_view text, Scratch& scratch, std::size_t floor, std::uint32_t& op, std::size_t& at) const;

    std::vector<Op> ops_;
    std::vector<CharacterSet> sets_;
    std::vector<std::vector<Choice>> choices_;
    std::bitset<256> first_;
    bool may_be_empty_ = false;
};

}  // namespace heed::text
