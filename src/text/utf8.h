#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace heed::text {

/// Text is bytes, meant as UTF-8. A byte that is no part of valid UTF-8 is a character of its own: `stray + byte`. It
/// passes through every stage and comes out as that byte, so that any bytes survive a round trip.
constexpr char32_t stray = 0x110000;

struct Character {
    char32_t code;
    int size;  // in bytes
};

/// The character at `at`, which is inside the text.
inline Character character_at(std::string_view text, std::size_t at) {
    const auto byte = [&](std::size_t n) { return static_cast<unsigned char>(text[at + n]); };
    const unsigned lead = byte(0);
    if (lead < 0x80) { return {lead, 1}; }
    const std::size_t left = text.size() - at;
    const auto follows = [&](std::size_t n) { return n < left && (byte(n) & 0xC0U) == 0x80; };
    if (lead >= 0xC2 && lead < 0xE0 && follows(1)) { return {(lead & 0x1FU) << 6U | (byte(1) & 0x3FU), 2}; }
    if (lead >= 0xE0 && lead < 0xF0 && follows(1) && follows(2)) {
        const char32_t code = (lead & 0x0FU) << 12U | (byte(1) & 0x3FU) << 6U | (byte(2) & 0x3FU);
        if (code >= 0x800 && (code < 0xD800 || code > 0xDFFF)) { return {code, 3}; }
    }
    if (lead >= 0xF0 && lead < 0xF5 && follows(1) && follows(2) && follows(3)) {
        const char32_t code =
            (lead & 0x07U) << 18U | (byte(1) & 0x3FU) << 12U | (byte(2) & 0x3FU) << 6U | (byte(3) & 0x3FU);
        if (code >= 0x10000 && code < stray) { return {code, 4}; }
    }
    return {stray + lead, 1};
}

/// The character that ends at `end`, which is not 0.
Character character_before(std::string_view text, std::size_t end);

void append(std::string& text, char32_t code);

/// How many characters the text has.
std::size_t characters_in(std::string_view text);

/// Every maximal piece of a broken sequence becomes one U+FFFD, as in the Unicode standard (and in Rust).
std::string valid_utf8(std::string_view text);
bool is_valid_utf8(std::string_view text);

/// Where a sequence that is still incomplete begins at the end of the text; the size of the text if there is none.
std::size_t incomplete_end(std::string_view text);

}  // namespace heed::text
