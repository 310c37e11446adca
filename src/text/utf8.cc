#include "text/utf8.h"

namespace heed::text {
namespace {

constexpr std::string_view replacement = "\xEF\xBF\xBD";

/// How many bytes a lead byte announces; 0 for a byte that leads nothing.
int announced(unsigned lead) {
    if (lead < 0x80) { return 1; }
    if (lead >= 0xC2 && lead < 0xE0) { return 2; }
    if (lead >= 0xE0 && lead < 0xF0) { return 3; }
    return lead >= 0xF0 && lead < 0xF5 ? 4 : 0;
}

/// Whether `second` may follow `lead`: not overlong, no surrogate, within Unicode.
bool may_follow(unsigned lead, unsigned second) {
    if ((second & 0xC0U) != 0x80) { return false; }
    if (lead == 0xE0) { return second >= 0xA0; }
    if (lead == 0xED) { return second < 0xA0; }
    if (lead == 0xF0) { return second >= 0x90; }
    return lead != 0xF4 || second < 0x90;
}

/// The bytes from `at` on that could begin a character, although they do not complete one: at least 1.
std::size_t broken_size(std::string_view text, std::size_t at) {
    const auto byte = [&](std::size_t n) { return static_cast<unsigned char>(text[n]); };
    const int whole = announced(byte(at));
    std::size_t size = 1;
    while (static_cast<int>(size) < whole && at + size < text.size()) {
        const unsigned next = byte(at + size);
        if (size == 1 ? !may_follow(byte(at), next) : (next & 0xC0U) != 0x80) { break; }
        ++size;
    }
    return size;
}

}  // namespace

Character character_before(std::string_view text, std::size_t end) {
    for (std::size_t size = 1; size <= 4 && size <= end; ++size) {
        const Character found = character_at(text, end - size);
        if (static_cast<std::size_t>(found.size) == size && found.code < stray) { return found; }
    }
    return {stray + static_cast<unsigned char>(text[end - 1]), 1};
}

void append(std::string& text, char32_t code) {
    const auto put = [&](char32_t byte) { text.push_back(static_cast<char>(static_cast<unsigned char>(byte))); };
    if (code >= stray) {
        put(code - stray);
    } else if (code < 0x80) {
        put(code);
    } else if (code < 0x800) {
        put(0xC0U | code >> 6U);
        put(0x80U | (code & 0x3FU));
    } else if (code < 0x10000) {
        put(0xE0U | code >> 12U);
        put(0x80U | (code >> 6U & 0x3FU));
        put(0x80U | (code & 0x3FU));
    } else {
        put(0xF0U | code >> 18U);
        put(0x80U | (code >> 12U & 0x3FU));
        put(0x80U | (code >> 6U & 0x3FU));
        put(0x80U | (code & 0x3FU));
    }
}

std::size_t characters_in(std::string_view text) {
    std::size_t count = 0;
    for (std::size_t at = 0; at < text.size(); ++count) { at += static_cast<std::size_t>(character_at(text, at).size); }
    return count;
}

bool is_valid_utf8(std::string_view text) {
    for (std::size_t at = 0; at < text.size();) {
        const Character next = character_at(text, at);
        if (next.code >= stray) { return false; }
        at += static_cast<std::size_t>(next.size);
    }
    return true;
}

std::string valid_utf8(std::string_view text) {
    std::string result;
    result.reserve(text.size());
    for (std::size_t at = 0; at < text.size();) {
        const Character next = character_at(text, at);
        const auto size = next.code < stray ? static_cast<std::size_t>(next.size) : broken_size(text, at);
        result += next.code < stray ? text.substr(at, size) : replacement;
        at += size;
    }
    return result;
}

std::size_t incomplete_end(std::string_view text) {
    for (std::size_t back = 1; back <= 3 && back <= text.size(); ++back) {
        const std::size_t at = text.size() - back;
        const unsigned lead = static_cast<unsigned char>(text[at]);
        if ((lead & 0xC0U) == 0x80) { continue; }
        const bool waits = announced(lead) > static_cast<int>(back) && broken_size(text, at) == back;
        return waits ? at : text.size();
    }
    return text.size();
}

}  // namespace heed::text
