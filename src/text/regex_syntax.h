#pragma once
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "text/regex.h"

namespace heed::text {

/// A regular expression as its text says it.
struct RegexNode {
    enum class Kind : std::uint8_t { empty, set, sequence, choice, repeat, look, atomic, edge } kind = Kind::empty;
    enum class Edge : std::uint8_t { line_begin, line_end, text_begin, text_end, last_line_end, word, no_word };
    enum class Greed : std::uint8_t { greedy, lazy, possessive };
    static constexpr std::uint32_t unlimited = 0xFFFFFFFF;

    CharacterSet set;
    std::vector<RegexNode> parts;  // repeat, look and atomic have one
    std::uint32_t min = 0, max = 0;
    Greed greed = Greed::greedy;
    Edge edge = Edge::line_begin;
    bool negated = false, behind = false;  // look
};

/// Errors name the pattern and the place.
RegexNode parse_regex(std::string_view pattern);

}  // namespace heed::text
