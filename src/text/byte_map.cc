#include <array>

#include "text/pipeline.h"
#include "text/utf8.h"

namespace heed::text {
namespace {

/// Printable bytes stand for themselves; the other 68 are written as U+0100, U+0101 and so on.
struct ByteMap {
    std::array<char32_t, 256> character{};
    std::array<int, 512> byte{};
};

constexpr ByteMap make_byte_map() {
    ByteMap map;
    map.byte.fill(-1);
    char32_t next = 0x100;
    for (unsigned b = 0; b < 256; ++b) {
        const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        map.character[b] = printable ? b : next++;
        map.byte[map.character[b]] = static_cast<int>(b);
    }
    return map;
}

constexpr ByteMap byte_map = make_byte_map();

}  // namespace

std::string bytes_as_characters(std::string_view bytes) {
    std::string text;
    text.reserve(bytes.size() * 2);
    for (const char byte : bytes) { append(text, byte_map.character[static_cast<unsigned char>(byte)]); }
    return text;
}

std::optional<std::string> characters_as_bytes(std::string_view text) {
    std::string bytes;
    bytes.reserve(text.size());
    for (std::size_t at = 0; at < text.size();) {
        const Character next = character_at(text, at);
        if (next.code >= byte_map.byte.size() || byte_map.byte[next.code] < 0) { return std::nullopt; }
        bytes.push_back(static_cast<char>(static_cast<unsigned char>(byte_map.byte[next.code])));
        at += static_cast<std::size_t>(next.size);
    }
    return bytes;
}

}  // namespace heed::text
