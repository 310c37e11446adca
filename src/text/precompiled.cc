#include "text/precompiled.h"

#include "text/json_field.h"
#include "text/unicode.h"

namespace heed::text {
namespace {

std::string from_base64(const JsonField& field) {
    std::string bytes;
    std::uint32_t held = 0;
    int bits = 0;
    for (const char c : field.text()) {
        int value = -1;
        if (c >= 'A' && c <= 'Z') { value = c - 'A'; }
        if (c >= 'a' && c <= 'z') { value = c - 'a' + 26; }
        if (c >= '0' && c <= '9') { value = c - '0' + 52; }
        if (c == '+') { value = 62; }
        if (c == '/') { value = 63; }
        if (c == '=') { break; }
        if (value < 0) { field.fail("base64"); }
        held = held << 6U | static_cast<std::uint32_t>(value);
        bits += 6;
        if (bits >= 8) {
            bits -= 8;
            bytes.push_back(static_cast<char>(static_cast<unsigned char>(held >> static_cast<unsigned>(bits) & 0xFFU)));
        }
    }
    return bytes;
}

/// Four bytes: how long the trie is; the trie, units of four bytes in Darts' layout; replacements, each with a zero
/// behind it.
class Precompiled final : public Normalizer {
public:
    explicit Precompiled(const JsonField& field) {
        const JsonField map = field["precompiled_charsmap"];
        const std::string bytes = from_base64(map);
        const auto word = [&](std::size_t at) {
            std::uint32_t value = 0;
            for (std::size_t n = 0; n < 4; ++n) {
                value |= static_cast<std::uint32_t>(static_cast<unsigned char>(bytes[at + n])) << (8 * n);
            }
            return value;
        };
        if (bytes.size() < 4 || word(0) % 4 != 0 || word(0) > bytes.size() - 4) {
            map.fail("a trie and its replacements");
        }
        for (std::size_t at = 4; at < 4 + word(0); at += 4) { units_.push_back(word(at)); }
        replacements_ = bytes.substr(4 + word(0));
        if (!is_valid_utf8(replacements_)) { map.fail("replacements in UTF-8"); }
    }

    void apply(std::string& text) const override {
        constexpr std::size_t longest = 6;  // clusters from here on are looked up character by character
        std::string result;
        result.reserve(text.size());
        for (std::size_t at = 0; at < text.size();) {
            const std::size_t size = grapheme_size(text, at);
            const std::string_view cluster = std::string_view(text).substr(at, size);
            at += size;
            if (size < longest) {
                if (const auto found = replacement(cluster)) {
                    result += *found;
                    continue;
                }
            }
            for (std::size_t n = 0; n < size;) {
                const std::string_view part =
                    cluster.substr(n, static_cast<std::size_t>(character_at(cluster, n).size));
                const auto found = replacement(part);
                result += found ? *found : part;
                n += part.size();
            }
        }
        text = std::move(result);
    }

private:
    /// Of the shortest entry that begins the text: what follows it there is dropped, as in Hugging Face's.
    std::optional<std::string_view> replacement(std::string_view text) const {
        const auto offset = [](std::uint32_t unit) { return (unit >> 10U) << ((unit & (1U << 9U)) >> 6U); };
        if (units_.empty()) { return std::nullopt; }
        std::size_t at = offset(units_[0]);
        for (const char c : text) {
            const std::uint32_t byte = static_cast<unsigned char>(c);
            if (byte == 0) { return std::nullopt; }
            at ^= byte;
            if (at >= units_.size()) { return std::nullopt; }
            const std::uint32_t unit = units_[at];
            if ((unit & (1U << 31U | 0xFFU)) != byte) { return std::nullopt; }
            at ^= offset(unit);
            if ((unit >> 8U & 1U) != 0) {
                return at < units_.size() ? text_at(units_[at] & 0x7FFFFFFFU) : std::nullopt;
            }
        }
        return std::nullopt;
    }
    std::optional<std::string_view> text_at(std::size_t at) const {
        if (at >= replacements_.size()) { return std::nullopt; }
        const std::size_t end = replacements_.find('\0', at);
        return std::string_view(replacements_).substr(at, end == std::string::npos ? end : end - at);
    }

    std::vector<std::uint32_t> units_;
    std::string replacements_;
};

}  // namespace

std::unique_ptr<Normalizer> read_precompiled(const JsonField& field) { return std::make_unique<Precompiled>(field); }

}  // namespace heed::text
