#include "print/text.h"

#include <charconv>
#include <cmath>

#include <fmt/format.h>

namespace heed::cli {
namespace {

struct CodePoint {
    std::uint32_t value = 0;
    std::size_t bytes = 0;  ///< 0: not UTF-8
};

CodePoint decode(std::string_view text) {
    const auto byte = [&](std::size_t n) { return static_cast<std::uint8_t>(text[n]); };
    const std::uint8_t lead = byte(0);
    if (lead < 0x80) { return {lead, 1}; }
    const std::size_t bytes = lead >= 0xF0 && lead < 0xF8 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC2 ? 2 : 0;
    if (bytes == 0 || lead >= 0xF8 || text.size() < bytes) { return {}; }
    std::uint32_t value = lead & (0xFFU >> (bytes + 1));
    for (std::size_t n = 1; n < bytes; ++n) {
        if ((byte(n) & 0xC0) != 0x80) { return {}; }
        value = value << 6 | (byte(n) & 0x3FU);
    }
    const std::uint32_t least = bytes == 2 ? 0x80 : bytes == 3 ? 0x800 : 0x10000;
    const bool surrogate = value >= 0xD800 && value < 0xE000;
    return value < least || value > 0x10FFFF || surrogate ? CodePoint{} : CodePoint{value, bytes};
}

bool is_safe(std::uint32_t c) {
    const bool control = c < 0x20 || (c >= 0x7F && c < 0xA0);
    const bool invisible = (c >= 0x200B && c <= 0x200F) || (c >= 0x2028 && c <= 0x202E) ||
                           (c >= 0x2060 && c <= 0x206F) || c == 0xFEFF || (c >= 0xE0000 && c <= 0xE007F);
    return !control && !invisible;
}

}  // namespace

std::string printable(std::string_view text) {
    std::string result;
    while (!text.empty()) {
        const CodePoint c = decode(text);
        const std::size_t bytes = std::max<std::size_t>(c.bytes, 1);
        if (c.bytes == 0 || (c.bytes == 1 && !is_safe(c.value))) {
            result += fmt::format("\\x{:02x}", static_cast<std::uint8_t>(text[0]));
        } else if (!is_safe(c.value)) {
            result += fmt::format("\\u{:04x}", c.value);
        } else {
            result += text.substr(0, bytes);
        }
        text.remove_prefix(bytes);
    }
    return result;
}

std::size_t width_of(std::string_view text) {
    std::size_t width = 0;
    for (const char c : text) { width += (static_cast<std::uint8_t>(c) & 0xC0) != 0x80 ? 1 : 0; }
    return width;
}

std::int64_t parse_integer(const std::string& option, std::string_view text, std::int64_t least, std::int64_t most) {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < least || value > most) {
        throw UsageError(fmt::format("{}: expected a whole number from {} to {}, got '{}'", option, least, most, text));
    }
    return value;
}

std::uint64_t parse_unsigned(const std::string& option, std::string_view text, std::uint64_t most) {
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value > most) {
        throw UsageError(fmt::format("{}: expected a whole number from 0 to {}, got '{}'", option, most, text));
    }
    return value;
}

double parse_real(const std::string& option, std::string_view text) {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) {
        throw UsageError(fmt::format("{}: expected a number, got '{}'", option, text));
    }
    return value;
}

std::vector<std::int64_t> parse_integers(const std::string& option, std::string_view text, std::int64_t least,
                                         std::int64_t most) {
    std::vector<std::int64_t> values;
    while (true) {
        const std::size_t comma = text.find(',');
        values.push_back(parse_integer(option, text.substr(0, comma), least, most));
        if (comma == std::string_view::npos) { return values; }
        text.remove_prefix(comma + 1);
    }
}

DType parse_dtype(const std::string& option, std::string_view text) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
        if (name_of(dtype) == text) { return dtype; }
    }
    throw UsageError(fmt::format("{}: expected f32, bf16, f16 or f64, got '{}'", option, text));
}

nlohmann::ordered_json parse_json(const std::string& source, std::string_view text) {
    try {
        return nlohmann::ordered_json::parse(text);
    } catch (const nlohmann::json::parse_error& error) {
        // "[json.exception.parse_error.101] parse error at line 1, column 2: ...": what comes after the bracket.
        const std::string_view what = error.what();
        const std::size_t bracket = what.find("] ");
        throw UsageError(source + ": " + std::string(what.substr(bracket == std::string_view::npos ? 0 : bracket + 2)));
    } catch (const nlohmann::json::exception& error) { throw UsageError(source + ": " + error.what()); }
}

std::string describe(const nlohmann::ordered_json& value) {
    if (value.is_array()) { return fmt::format("an array of {}", value.size()); }
    if (value.is_object()) { return "an object"; }
    std::string text = dump(value);
    if (text.size() > 40) { text = text.substr(0, 36) + " ..."; }
    return text;
}

std::string dump(const nlohmann::ordered_json& value) {
    return value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string compact(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape.begin(), shape.end(), ",")); }

std::string shortest(double value) { return fmt::format("{}", value); }

}  // namespace heed::cli
