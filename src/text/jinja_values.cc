#include "text/jinja_values.h"

#include <heed/error.h>

#include <algorithm>
#include <charconv>

#include "base/refuse.h"
#include "io/file.h"
#include "text/unicode.h"

namespace heed::text {
namespace {

using Value = JinjaValue;

/// As Python writes a float: the fewest digits that bring it back, an exponent below 1e-4 and from 1e16 on.
std::string float_text(double number) {
    if (number != number) { return "nan"; }
    if (number > 1.7976931348623157e308 || number < -1.7976931348623157e308) { return number > 0 ? "inf" : "-inf"; }
    char buffer[40];
    const auto scientific = std::to_chars(buffer, buffer + sizeof(buffer), number, std::chars_format::scientific);
    const std::string shortest(buffer, scientific.ptr);
    const std::size_t mark = shortest.find('e');
    const int exponent = std::stoi(shortest.substr(mark + 1));
    if (exponent < -4 || exponent >= 16) { return shortest; }
    const auto fixed = std::to_chars(buffer, buffer + sizeof(buffer), number, std::chars_format::fixed);
    std::string text(buffer, fixed.ptr);
    return text.find('.') == std::string::npos ? text + ".0" : text;
}

std::string number_text(const Value& value) {
    return value.is_number_float() ? float_text(value.get<double>()) : value.dump();
}

void append_hexadecimal(std::string& text, const char* lead, char32_t code, int digits) {
    text += lead;
    for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) {
        text += "0123456789abcdef"[code >> static_cast<unsigned>(shift) & 15U];
    }
}

/// As Python's repr() writes a text.
std::string quoted(const std::string& text) {
    const bool doubled = text.find('\'') != std::string::npos && text.find('"') == std::string::npos;
    const char32_t quote = doubled ? U'"' : U'\'';
    std::string result(1, static_cast<char>(quote));
    for (std::size_t at = 0; at < text.size();) {
        const Character next = character_at(text, at);
        at += static_cast<std::size_t>(next.size);
        constexpr Categories hidden = bit(Category::Cc) | bit(Category::Cf) | bit(Category::Cs) | bit(Category::Co) |
                                      bit(Category::Cn) | bit(Category::Zl) | bit(Category::Zp) | bit(Category::Zs);
        if (next.code == quote || next.code == U'\\') {
            result += '\\';
            append(result, next.code);
        } else if (next.code == U'\n' || next.code == U'\r' || next.code == U'\t') {
            result += next.code == U'\n' ? "\\n" : next.code == U'\r' ? "\\r" : "\\t";
        } else if (next.code != U' ' && next.code < stray && is_in(hidden, next.code)) {
            const int digits = next.code < 0x100 ? 2 : next.code < 0x10000 ? 4 : 8;
            append_hexadecimal(result, digits == 2 ? "\\x" : digits == 4 ? "\\u" : "\\U", next.code, digits);
        } else {
            append(result, next.code);
        }
    }
    return result + static_cast<char>(quote);
}

std::string repr_of(const Value& value) {
    if (value.is_string()) { return quoted(value.get_ref<const std::string&>()); }
    if (!value.is_array() && !value.is_object()) { return text_of_value(value); }
    std::string text = value.is_object() ? "{" : "[";
    bool first = true;
    for (const auto& [key, part] : value.items()) {
        text += first ? "" : ", ";
        first = false;
        if (value.is_object()) { text += quoted(key) + ": "; }
        text += repr_of(part);
        if (text.size() > rendered_limit) { render_error("less text", "more than 64 MB"); }
    }
    return text + (value.is_object() ? "}" : "]");
}

std::string json_string(const std::string& text, bool ascii) {
    std::string result = "\"";
    for (std::size_t at = 0; at < text.size();) {
        const Character next = character_at(text, at);
        at += static_cast<std::size_t>(next.size);
        const auto named = std::string_view("\"\\\n\r\t\f\b").find(static_cast<char>(next.code));
        if (next.code < 0x80 && next.code != 0 && named != std::string_view::npos) {
            result += '\\';
            result += "\"\\nrtfb"[named];
        } else if (next.code < 0x20 || (ascii && next.code > 0x7E && next.code < 0x10000)) {
            append_hexadecimal(result, "\\u", next.code, 4);
        } else if (ascii && next.code >= 0x10000 && next.code < stray) {
            append_hexadecimal(result, "\\u", 0xD800 + ((next.code - 0x10000) >> 10U), 4);
            append_hexadecimal(result, "\\u", 0xDC00 + ((next.code - 0x10000) & 0x3FFU), 4);
        } else {
            append(result, next.code < stray ? next.code : 0xFFFD);
        }
    }
    return result + "\"";
}

void append_json(std::string& out, const Value& value, const JsonStyle& style, std::int64_t depth) {
    if (out.size() > rendered_limit) { render_error("less text", "more than 64 MB"); }
    if (value.is_discarded() || value.is_binary()) { render_error("a value that JSON has", kind_of_value(value)); }
    if (value.is_string()) {
        out += json_string(value.get_ref<const std::string&>(), style.ascii);
        return;
    }
    if (value.is_number_float()) {
        const std::string text = float_text(value.get<double>());
        out += text == "nan" ? "NaN" : text == "inf" ? "Infinity" : text == "-inf" ? "-Infinity" : text;
        return;
    }
    if (!value.is_array() && !value.is_object()) {
        out += value.dump();
        return;
    }
    std::vector<std::pair<std::string, const Value*>> parts;
    for (const auto& [key, part] : value.items()) { parts.emplace_back(key, &part); }
    if (style.sorted && value.is_object()) {
        std::sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    }
    const auto line = [&](std::int64_t levels) {
        if (style.indent) { out += "\n" + std::string(static_cast<std::size_t>(*style.indent * levels), ' '); }
    };
    out += value.is_object() ? '{' : '[';
    for (std::size_t n = 0; n < parts.size(); ++n) {
        if (n > 0) { out += style.indent ? "," : ", "; }
        line(depth + 1);
        if (value.is_object()) { out += json_string(parts[n].first, style.ascii) + ": "; }
        append_json(out, *parts[n].second, style, depth + 1);
    }
    if (!parts.empty()) { line(depth); }
    out += value.is_object() ? '}' : ']';
}

}  // namespace

void render_error(const std::string& expected, const std::string& got) {
    refuse("ChatTemplate::render", "template", expected, in_quotes(got));
}

Value undefined() { return Value(nlohmann::detail::value_t::discarded); }

bool is_true(const Value& value) {
    if (value.is_discarded() || value.is_null()) { return false; }
    if (value.is_boolean()) { return value.get<bool>(); }
    if (value.is_number()) { return value.get<double>() != 0; }
    if (value.is_string()) { return !value.get_ref<const std::string&>().empty(); }
    return value.is_binary() || !value.empty();
}

Value handle_value(JinjaHandle kind, std::size_t number) {
    std::vector<std::uint8_t> bytes;
    for (unsigned shift = 0; shift < 32; shift += 8) { bytes.push_back(static_cast<std::uint8_t>(number >> shift)); }
    return Value::binary(std::move(bytes), static_cast<std::uint8_t>(kind));
}

std::optional<std::size_t> handle_number(const Value& value, JinjaHandle kind) {
    if (!value.is_binary() || value.get_binary().subtype() != static_cast<std::uint8_t>(kind)) { return std::nullopt; }
    std::size_t number = 0;
    for (unsigned n = 0; n < 4; ++n) { number |= static_cast<std::size_t>(value.get_binary()[n]) << (8 * n); }
    return number;
}

std::string text_of_value(const Value& value) {
    if (value.is_discarded()) { return {}; }
    if (value.is_string()) { return value.get<std::string>(); }
    if (value.is_null()) { return "None"; }
    if (value.is_boolean()) { return value.get<bool>() ? "True" : "False"; }
    if (value.is_number()) { return number_text(value); }
    if (value.is_binary()) { render_error("text to write", kind_of_value(value)); }
    return repr_of(value);
}

std::string kind_of_value(const Value& value) {
    if (value.is_discarded()) { return "a variable that is not defined"; }
    if (value.is_string()) { return "text"; }
    if (value.is_null()) { return "none"; }
    if (value.is_boolean()) { return "true or false"; }
    if (value.is_number()) { return "a number"; }
    if (value.is_array()) { return "a list"; }
    return value.is_object() ? "a mapping" : "a namespace or macro";
}

std::optional<int> order_of(const Value& a, const Value& b) {
    const auto sign = [](auto x, auto y) { return x < y ? -1 : x > y ? 1 : 0; };
    const auto counts = [](const Value& v) { return v.is_number() || v.is_boolean(); };
    if (counts(a) && counts(b)) {
        const auto number = [](const Value& v) {
            return v.is_boolean() ? (v.get<bool>() ? 1.0 : 0.0) : v.get<double>();
        };
        return sign(number(a), number(b));
    }
    if (a.is_string() && b.is_string()) {
        return sign(a.get_ref<const std::string&>().compare(b.get_ref<const std::string&>()), 0);
    }
    if (!a.is_array() || !b.is_array()) { return std::nullopt; }
    for (std::size_t n = 0; n < std::min(a.size(), b.size()); ++n) {
        const auto order = order_of(a[n], b[n]);
        if (!order || *order != 0) { return order; }
    }
    return sign(a.size(), b.size());
}

std::string json_text(const Value& value, const JsonStyle& style) {
    std::string out;
    append_json(out, value, style, 0);
    return out;
}

Value JinjaArguments::get(std::size_t place, std::string_view name) const {
    if (place < plain.size()) { return plain[place]; }
    for (const auto& [key, value] : named) {
        if (key == name) { return value; }
    }
    return undefined();
}

std::vector<std::string> characters_of(const std::string& text) {
    std::vector<std::string> characters;
    for (std::size_t at = 0; at < text.size();) {
        const auto size = static_cast<std::size_t>(character_at(text, at).size);
        characters.push_back(text.substr(at, size));
        at += size;
    }
    return characters;
}

std::vector<Value> elements_of(const Value& value) {
    std::vector<Value> elements;
    if (value.is_array()) {
        elements.assign(value.begin(), value.end());
    } else if (value.is_object()) {
        for (const auto& [key, part] : value.items()) { elements.emplace_back(key); }
    } else if (value.is_string()) {
        constexpr std::size_t most = std::size_t{4} << 20U;
        if (value.get_ref<const std::string&>().size() > most) {
            render_error("text of at most 4 MB to take apart", "more");
        }
        for (std::string& one : characters_of(value.get_ref<const std::string&>())) {
            elements.emplace_back(std::move(one));
        }
    } else if (is_defined(value)) {
        render_error("a list, a mapping or text to go through", kind_of_value(value));
    }
    return elements;
}

Value element_of(const Value& value, const Value& key) {
    if (!is_defined(value)) {
        render_error("a variable that is defined", "one that is not, at [" + text_of_value(key) + "]");
    }
    if (value.is_object()) {
        const auto found = key.is_string() ? value.find(key.get_ref<const std::string&>()) : value.end();
        return found == value.end() ? undefined() : *found;
    }
    if (!key.is_number_integer() || (!value.is_array() && !value.is_string())) { return undefined(); }
    const std::vector<Value> characters = value.is_string() ? elements_of(value) : std::vector<Value>();
    const auto size = static_cast<std::int64_t>(value.is_string() ? characters.size() : value.size());
    std::int64_t n = key.get<std::int64_t>();
    n += n < 0 ? size : 0;
    if (n < 0 || n >= size) { return undefined(); }
    return value.is_string() ? characters[static_cast<std::size_t>(n)] : value[static_cast<std::size_t>(n)];
}

bool contains_value(const Value& whole, const Value& part) {
    if (whole.is_string() && part.is_string()) {
        return whole.get_ref<const std::string&>().find(part.get_ref<const std::string&>()) != std::string::npos;
    }
    if (whole.is_object()) { return part.is_string() && whole.contains(part.get_ref<const std::string&>()); }
    if (whole.is_array()) { return std::find(whole.begin(), whole.end(), part) != whole.end(); }
    if (!is_defined(whole)) { return false; }
    render_error("a list, a mapping or text behind 'in'", kind_of_value(whole));
}

std::string formatted(const std::string& text, const std::vector<Value>& values) {
    std::string result;
    std::size_t next = 0;
    for (std::size_t at = 0; at < text.size(); ++at) {
        if (text[at] != '%') {
            result += text[at];
            continue;
        }
        const char kind = ++at < text.size() ? text[at] : '\0';
        if (kind == '%') {
            result += '%';
        } else if ((kind == 's' || (kind == 'd' && next < values.size() && values[next].is_number_integer())) &&
                   next < values.size()) {
            result += text_of_value(values[next++]);
        } else {
            render_error("%s or %d, and a value for each", text);
        }
    }
    if (next < values.size()) { render_error("as many values as places", text); }
    return result;
}

}  // namespace heed::text
