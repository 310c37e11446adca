#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>

#include "text/jinja_values.h"
#include "text/unicode.h"

namespace heed::text {
namespace {

using Value = JinjaValue;
using Arguments = JinjaArguments;

/// What Python calls white space: Unicode's, and four separators.
bool is_python_space(char32_t code) { return is_space(code) || (code >= 0x1C && code <= 0x1F); }

const std::string& text_given(const Value& value, const std::string& where) {
    if (!value.is_string()) { render_error("text for " + where, kind_of_value(value)); }
    return value.get_ref<const std::string&>();
}

/// Without characters of `what` (white space where that is no text) at its ends.
std::string stripped(const std::string& text, bool left, bool right, const Value& what) {
    const auto goes = [&](const Character& c, std::size_t at) {
        if (!what.is_string()) { return is_python_space(c.code); }
        const std::string one = text.substr(at, static_cast<std::size_t>(c.size));
        return what.get_ref<const std::string&>().find(one) != std::string::npos;
    };
    std::size_t begin = 0, end = text.size();
    while (left && begin < end && goes(character_at(text, begin), begin)) {
        begin += static_cast<std::size_t>(character_at(text, begin).size);
    }
    while (right && end > begin) {
        const Character last = character_before(text, end);
        if (!goes(last, end - static_cast<std::size_t>(last.size))) { break; }
        end -= static_cast<std::size_t>(last.size);
    }
    return text.substr(begin, end - begin);
}

std::string replaced_in(const std::string& text, const std::string& from, const std::string& to, std::int64_t most) {
    if (from.empty()) { render_error("something to replace", "nothing"); }
    std::string result;
    std::size_t at = 0;
    for (std::size_t hit = 0; most != 0 && (hit = text.find(from, at)) != std::string::npos; at = hit + from.size()) {
        result.append(text, at, hit - at).append(to);
        --most;
        if (result.size() > rendered_limit) { render_error("less text", "more than 64 MB"); }
    }
    return result.append(text, at);
}

Value split_at_space(const std::string& text, std::int64_t most) {
    Value parts = Value::array();
    for (std::size_t at = 0; at < text.size();) {
        const Character next = character_at(text, at);
        if (is_python_space(next.code)) {
            at += static_cast<std::size_t>(next.size);
            continue;
        }
        if (most >= 0 && static_cast<std::int64_t>(parts.size()) == most) {
            parts.push_back(stripped(text.substr(at), false, true, Value()));
            break;
        }
        const std::size_t begin = at;
        while (at < text.size() && !is_python_space(character_at(text, at).code)) {
            at += static_cast<std::size_t>(character_at(text, at).size);
        }
        parts.push_back(text.substr(begin, at - begin));
    }
    return parts;
}

Value split_text(const std::string& text, const Value& by, std::int64_t most, bool from_right) {
    if (!by.is_string()) {
        if (from_right && most >= 0) { render_error("a text to split at from the right", "none"); }
        return split_at_space(text, most);
    }
    const std::string& what = by.get_ref<const std::string&>();
    if (what.empty()) { render_error("something to split at", "nothing"); }
    std::vector<Value> parts;
    const auto more = [&] { return most < 0 || static_cast<std::int64_t>(parts.size()) < most; };
    if (from_right) {
        std::size_t end = text.size();
        while (more() && end >= what.size()) {
            const std::size_t hit = text.rfind(what, end - what.size());
            if (hit == std::string::npos) { break; }
            parts.emplace_back(text.substr(hit + what.size(), end - hit - what.size()));
            end = hit;
        }
        parts.emplace_back(text.substr(0, end));
        std::reverse(parts.begin(), parts.end());
        return Value(parts);
    }
    std::size_t at = 0;
    for (std::size_t hit = 0; more() && (hit = text.find(what, at)) != std::string::npos; at = hit + what.size()) {
        parts.emplace_back(text.substr(at, hit - at));
    }
    parts.emplace_back(text.substr(at));
    return Value(parts);
}

Value lines_of(const std::string& text) {
    Value lines = Value::array();
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = std::min(text.find_first_of("\r\n", at), text.size());
        lines.push_back(text.substr(at, end - at));
        at = end + (text.compare(end, 2, "\r\n") == 0 ? 2 : 1);
    }
    return lines;
}

/// Upper and lower case are known for all letters of ASCII, lower case for all but the sigma, which depends on its
/// place.
std::string with_case(const std::string& method, const std::string& text) {
    constexpr Categories cased = bit(Category::Lu) | bit(Category::Ll) | bit(Category::Lt);
    std::string result;
    bool begin = true;
    for (std::size_t at = 0; at < text.size();) {
        const Character next = character_at(text, at);
        at += static_cast<std::size_t>(next.size);
        const bool letter = next.code < stray && is_in(cased, next.code);
        const bool raise =
            method == "upper" || (method == "title" && begin) || (method == "capitalize" && result.empty());
        if (letter && next.code >= 0x80 && (raise || next.code == 0x3A3)) {
            render_error("letters of ASCII for " + method, text);
        }
        if (raise && next.code < 0x80) {
            result += static_cast<char>(std::toupper(static_cast<int>(next.code)));
        } else {
            append_lower(result, next.code);
        }
        begin = !letter;
    }
    return result;
}

std::int64_t whole_or(const Value& value, std::int64_t otherwise, const std::string& where) {
    if (!is_defined(value) || value.is_null()) { return otherwise; }
    if (!value.is_number_integer()) { render_error("a whole number for " + where, kind_of_value(value)); }
    return value.get<std::int64_t>();
}

bool begins_or_ends(const std::string& method, const std::string& text, const Value& with) {
    if (with.is_array()) {
        return std::any_of(with.begin(), with.end(),
                           [&](const Value& one) { return begins_or_ends(method, text, one); });
    }
    const std::string& part = text_given(with, method);
    if (part.size() > text.size()) { return false; }
    return text.compare(method == "startswith" ? 0 : text.size() - part.size(), part.size(), part) == 0;
}

std::optional<Value> text_method(const std::string& method, const std::string& text, const Arguments& given) {
    const Value first = given.get(0, "sep");
    const auto second_text = [&] { return text_given(given.get(1, "new"), method); };
    if (method == "strip") { return stripped(text, true, true, first); }
    if (method == "lstrip") { return stripped(text, true, false, first); }
    if (method == "rstrip") { return stripped(text, false, true, first); }
    if (method == "upper" || method == "lower" || method == "capitalize" || method == "title") {
        return with_case(method, text);
    }
    if (method == "startswith" || method == "endswith") { return begins_or_ends(method, text, first); }
    if (method == "removeprefix" || method == "removesuffix") {
        const bool front = method == "removeprefix";
        if (!begins_or_ends(front ? "startswith" : "endswith", text, first)) { return text; }
        const std::size_t size = first.get_ref<const std::string&>().size();
        return front ? text.substr(size) : text.substr(0, text.size() - size);
    }
    if (method == "replace") {
        return replaced_in(text, text_given(given.get(0, "old"), method), second_text(),
                           whole_or(given.get(2, "count"), -1, method));
    }
    if (method == "split" || method == "rsplit") {
        return split_text(text, first, whole_or(given.get(1, "maxsplit"), -1, method), method == "rsplit");
    }
    if (method == "splitlines") { return lines_of(text); }
    if (method == "join") {
        std::string whole;
        const std::vector<Value> parts = elements_of(first);
        for (std::size_t n = 0; n < parts.size(); ++n) { whole += (n > 0 ? text : "") + text_given(parts[n], method); }
        return whole;
    }
    if (method == "find" || method == "rfind") {
        const std::size_t hit =
            method == "find" ? text.find(text_given(first, method)) : text.rfind(text_given(first, method));
        return hit == std::string::npos ? Value(-1) : Value(characters_in(text.substr(0, hit)));
    }
    if (method == "count") {
        const std::string& what = text_given(first, method);
        if (what.empty()) { render_error("something to count", "nothing"); }
        std::int64_t count = 0;
        for (std::size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += what.size()) { ++count; }
        return count;
    }
    if (method == "isdigit" || method == "isalpha" || method == "isspace") {
        bool all = !text.empty();
        for (const char c : text) {
            const int code = static_cast<unsigned char>(c);
            if (code >= 0x80) { render_error("ASCII for " + method, text); }
            all = all && (method == "isdigit"   ? std::isdigit(code) != 0
                          : method == "isalpha" ? std::isalpha(code) != 0
                                                : is_python_space(static_cast<char32_t>(code)));
        }
        return all;
    }
    return std::nullopt;
}

Value pairs_of(const Value& object) {
    Value pairs = Value::array();
    if (!is_defined(object)) { return pairs; }
    if (!object.is_object()) { render_error("a mapping", kind_of_value(object)); }
    for (const auto& [key, value] : object.items()) { pairs.push_back(Value::array({key, value})); }
    return pairs;
}

/// "a.b.0" of a value.
Value attribute_path(const Value& value, const Value& path) {
    if (path.is_number_integer()) { return element_of(value, path); }
    Value at = value;
    const Value parts = split_text(text_given(path, "attribute"), ".", -1, false);
    for (const Value& part : parts) {
        const std::string& name = part.get_ref<const std::string&>();
        const bool number =
            !name.empty() && name.size() < 9 && name.find_first_not_of("0123456789") == std::string::npos;
        if (!is_defined(at)) { return at; }
        at = element_of(at, number ? Value(std::stol(name)) : part);
    }
    return at;
}

/// selectattr(name, test, argument), reject(test) and the like.
Value chosen(const std::string& filter, const Value& list, const Arguments& given) {
    const bool by_attribute = filter == "selectattr" || filter == "rejectattr";
    const bool keep = filter == "select" || filter == "selectattr";
    const std::size_t skip = by_attribute ? 2 : 1;
    const Value test = by_attribute ? given.get(1, "test") : given.get(0, "test");
    Arguments rest;
    for (std::size_t n = skip; n < given.plain.size(); ++n) { rest.plain.push_back(given.plain[n]); }
    Value result = Value::array();
    for (const Value& item : elements_of(list)) {
        const Value seen = by_attribute ? attribute_path(item, given.get(0, "attribute")) : item;
        const bool holds = is_defined(test) ? apply_jinja_test(text_given(test, filter), seen, rest) : is_true(seen);
        if (holds == keep) { result.push_back(item); }
    }
    return result;
}

Value mapped(const Value& list, const Arguments& given) {
    Value result = Value::array();
    const Value attribute = given.plain.empty() ? given.get(0, "attribute") : undefined();
    Arguments rest;
    for (std::size_t n = 1; n < given.plain.size(); ++n) { rest.plain.push_back(given.plain[n]); }
    for (const Value& item : elements_of(list)) {
        if (is_defined(attribute)) {
            Value found = attribute_path(item, attribute);
            result.push_back(is_defined(found) ? found : given.get(1, "default"));
        } else {
            const std::string name = text_given(given.get(0, "filter"), "map");
            if (!is_jinja_filter(name)) { render_error("a filter that heed knows", name); }
            result.push_back(apply_jinja_filter(name, item, rest));
        }
    }
    return result;
}

/// What is compared where case does not matter, as it does not in sort, unique, min and max unless told.
Value sort_key(const Value& item, const Value& attribute, const Value& case_sensitive) {
    Value key = is_defined(attribute) && !attribute.is_null() ? attribute_path(item, attribute) : item;
    if (key.is_string() && !is_true(case_sensitive)) { key = with_case("lower", key.get<std::string>()); }
    return key;
}

bool is_less(const Value& a, const Value& b) {
    const auto order = order_of(a, b);
    if (!order) { render_error("values of one kind to sort", kind_of_value(a) + " and " + kind_of_value(b)); }
    return *order < 0;
}

Value sorted_list(const Value& list, const Arguments& given) {
    std::vector<Value> items = elements_of(list);
    const Value attribute = given.get(2, "attribute"), sensitive = given.get(1, "case_sensitive");
    const auto before = [&](const Value& a, const Value& b) {
        return is_less(sort_key(a, attribute, sensitive), sort_key(b, attribute, sensitive));
    };
    if (is_true(given.get(0, "reverse"))) {
        std::stable_sort(items.begin(), items.end(), [&](const Value& a, const Value& b) { return before(b, a); });
    } else {
        std::stable_sort(items.begin(), items.end(), before);
    }
    return Value(items);
}

Value unique_list(const Value& list, const Arguments& given) {
    std::vector<Value> keys, items;
    for (const Value& item : elements_of(list)) {
        const Value key = sort_key(item, given.get(1, "attribute"), given.get(0, "case_sensitive"));
        if (std::find(keys.begin(), keys.end(), key) != keys.end()) { continue; }
        keys.push_back(key);
        items.push_back(item);
    }
    return Value(items);
}

Value extreme(const Value& list, const Arguments& given, bool largest) {
    const Value attribute = given.get(1, "attribute"), sensitive = given.get(0, "case_sensitive");
    Value best = undefined();
    for (const Value& item : elements_of(list)) {
        const auto key = [&](const Value& v) { return sort_key(v, attribute, sensitive); };
        if (!is_defined(best) || (largest ? is_less(key(best), key(item)) : is_less(key(item), key(best)))) {
            best = item;
        }
    }
    return best;
}

Value sum_of(const Value& list, const Arguments& given) {
    const Value attribute = given.get(0, "attribute");
    std::int64_t sum = whole_or(given.get(1, "start"), 0, "sum");
    for (const Value& item : elements_of(list)) {
        const std::int64_t number = whole_or(is_defined(attribute) ? attribute_path(item, attribute) : item, 0, "sum");
        if (std::abs(number) > (std::int64_t{1} << 40) || std::abs(sum) > (std::int64_t{1} << 60)) {
            render_error("numbers below 2^40", "larger ones");
        }
        sum += number;
    }
    return sum;
}

Value joined_text(const Value& list, const Arguments& given) {
    std::string text;
    const Value between = given.get(0, "d"), attribute = given.get(1, "attribute");
    bool first = true;
    for (const Value& item : elements_of(list)) {
        if (!first && is_defined(between)) { text += text_of_value(between); }
        first = false;
        text += text_of_value(is_defined(attribute) ? attribute_path(item, attribute) : item);
        if (text.size() > rendered_limit) { render_error("less text", "more than 64 MB"); }
    }
    return text;
}

Value json_filter(const Value& value, const Arguments& given) {
    constexpr std::int64_t widest = 64;
    JsonStyle style{.ascii = is_true(given.get(0, "ensure_ascii")), .sorted = is_true(given.get(3, "sort_keys"))};
    const Value indent = given.get(1, "indent"), separators = given.get(2, "separators");
    if (is_defined(separators) && !separators.is_null()) { render_error("tojson without separators", "some"); }
    if (is_defined(indent) && !indent.is_null()) {
        style.indent = whole_or(indent, 0, "indent");
        if (*style.indent < 0 || *style.indent > widest) {
            render_error("an indent of 0 to 64", std::to_string(*style.indent));
        }
    }
    return json_text(value, style);
}

/// Every line but the first (or also that) moved to the right; empty lines stay empty.
Value indented(const std::string& text, const Arguments& given) {
    const Value width = given.get(0, "width");
    const std::string before =
        width.is_string()
            ? width.get<std::string>()
            : std::string(static_cast<std::size_t>(std::clamp<std::int64_t>(whole_or(width, 4, "indent"), 0, 64)), ' ');
    const bool first = is_true(given.get(1, "first")), blank = is_true(given.get(2, "blank"));
    std::string result;
    std::size_t line = 0;
    for (std::size_t at = 0; at <= text.size(); ++line) {
        const std::size_t end = std::min(text.find('\n', at), text.size());
        const bool move = line == 0 ? first : blank || end > at;
        result += (line > 0 ? "\n" : "") + (move ? before : std::string()) + text.substr(at, end - at);
        at = end + 1;
    }
    return result;
}

Value number_filter(const std::string& name, const Value& value, const Arguments& given) {
    if (name == "abs") {
        if (!value.is_number()) { render_error("a number for abs", kind_of_value(value)); }
        return value.is_number_integer() ? Value(std::abs(value.get<std::int64_t>()))
                                         : Value(std::fabs(value.get<double>()));
    }
    if (name == "round") {
        const std::int64_t digits = whole_or(given.get(0, "precision"), 0, "round");
        if (!value.is_number() || digits < 0 || digits > 9 || is_defined(given.get(1, "method"))) {
            render_error("a number and 0 to 9 digits for round", kind_of_value(value));
        }
        const double scale = std::pow(10.0, static_cast<double>(digits));
        return std::nearbyint(value.get<double>() * scale) / scale;
    }
    const bool whole = name == "int";
    const Value otherwise = is_defined(given.get(0, "default")) ? given.get(0, "default")
                            : whole                             ? Value(0)
                                                                : Value(0.0);
    if (value.is_number()) {
        return whole ? Value(static_cast<std::int64_t>(std::clamp(value.get<double>(), -9e15, 9e15)))
                     : Value(value.get<double>());
    }
    if (value.is_boolean()) { return whole ? Value(value.get<bool>() ? 1 : 0) : Value(value.get<bool>() ? 1.0 : 0.0); }
    if (!value.is_string()) { return otherwise; }
    const std::string text = stripped(value.get<std::string>(), true, true, Value());
    char* end = nullptr;
    const double number = std::strtod(text.c_str(), &end);
    if (text.empty() || *end != '\0' || !std::isfinite(number)) { return otherwise; }
    return whole ? Value(static_cast<std::int64_t>(std::clamp(number, -9e15, 9e15))) : Value(number);
}

Value sorted_pairs(const Value& object) {
    std::vector<Value> pairs = elements_of(pairs_of(object));
    std::stable_sort(pairs.begin(), pairs.end(), [](const Value& a, const Value& b) {
        return is_less(sort_key(a[0], Value(), false), sort_key(b[0], Value(), false));
    });
    return Value(pairs);
}

constexpr std::string_view filters[] = {
    "abs",        "capitalize", "count",  "d",          "default", "dictsort", "first", "float",  "format",
    "indent",     "int",        "items",  "join",       "last",    "length",   "list",  "lower",  "map",
    "max",        "min",        "reject", "rejectattr", "replace", "reverse",  "round", "safe",   "select",
    "selectattr", "sort",       "string", "sum",        "title",   "tojson",   "trim",  "unique", "upper"};
constexpr std::string_view tests[] = {
    "!=",          "<",       "<=",       "==",       ">",        ">=",    "boolean",   "callable",    "defined",
    "divisibleby", "eq",      "equalto",  "even",     "false",    "float", "ge",        "greaterthan", "gt",
    "in",          "integer", "iterable", "le",       "lessthan", "lower", "lt",        "mapping",     "ne",
    "none",        "number",  "odd",      "sequence", "string",   "true",  "undefined", "upper"};

bool compared(const std::string& name, const Value& value, const Value& other) {
    if (name == "==" || name == "eq" || name == "equalto") { return value == other || order_of(value, other) == 0; }
    if (name == "!=" || name == "ne") { return !compared("==", value, other); }
    const auto order = order_of(value, other);
    if (!order) {
        render_error("values of one kind to compare", kind_of_value(value) + " and " + kind_of_value(other));
    }
    if (name == "<" || name == "lt" || name == "lessthan") { return *order < 0; }
    if (name == "<=" || name == "le") { return *order <= 0; }
    if (name == ">" || name == "gt" || name == "greaterthan") { return *order > 0; }
    return *order >= 0;
}

}  // namespace

bool is_jinja_filter(std::string_view name) {
    return std::find(std::begin(filters), std::end(filters), name) != std::end(filters);
}
bool is_jinja_test(std::string_view name) {
    return std::find(std::begin(tests), std::end(tests), name) != std::end(tests);
}

Value apply_jinja_filter(const std::string& name, const Value& value, const Arguments& given) {
    if (name == "default" || name == "d") {
        const bool missing = !is_defined(value) || (is_true(given.get(1, "boolean")) && !is_true(value));
        const Value otherwise = given.get(0, "default_value");
        return !missing ? value : is_defined(otherwise) ? otherwise : Value("");
    }
    if (name == "tojson") { return json_filter(value, given); }
    if (name == "length" || name == "count") {
        if (value.is_array() || value.is_object()) { return value.size(); }
        if (value.is_string()) { return characters_in(value.get_ref<const std::string&>()); }
        return elements_of(value).size();
    }
    if (name == "first" || name == "last") {
        const std::vector<Value> all = elements_of(value);
        return all.empty() ? undefined() : name == "first" ? all.front() : all.back();
    }
    if (name == "list") { return Value(elements_of(value)); }
    if (name == "reverse") {
        std::vector<Value> all = elements_of(value);
        std::reverse(all.begin(), all.end());
        return value.is_string() ? joined_text(Value(all), {}) : Value(all);
    }
    if (name == "items") { return pairs_of(value); }
    if (name == "dictsort") {
        if (!given.plain.empty() || !given.named.empty()) { render_error("dictsort without arguments", "some"); }
        return sorted_pairs(value);
    }
    if (name == "string") { return text_of_value(value); }
    if (name == "safe") { return value; }
    if (name == "int" || name == "float" || name == "abs" || name == "round") {
        return number_filter(name, value, given);
    }
    if (name == "join") { return joined_text(value, given); }
    if (name == "map") { return mapped(value, given); }
    if (name == "sort") { return sorted_list(value, given); }
    if (name == "unique") { return unique_list(value, given); }
    if (name == "min" || name == "max") { return extreme(value, given, name == "max"); }
    if (name == "sum") { return sum_of(value, given); }
    if (name.rfind("select", 0) == 0 || name.rfind("reject", 0) == 0) { return chosen(name, value, given); }
    const std::string text = text_of_value(value);  // what follows turns anything into text first
    if (name == "indent") { return indented(text, given); }
    if (name == "format") { return formatted(text, given.plain); }
    if (name == "trim") { return stripped(text, true, true, given.get(0, "chars")); }
    return *text_method(name, text, given);
}

bool apply_jinja_test(const std::string& name, const Value& value, const Arguments& given) {
    if (!is_jinja_test(name)) { render_error("a test that heed knows", name); }
    if (name == "defined") { return is_defined(value); }
    if (name == "undefined") { return !is_defined(value); }
    if (name == "none") { return value.is_null(); }
    if (name == "string") { return value.is_string(); }
    if (name == "mapping") { return value.is_object(); }
    if (name == "sequence" || name == "iterable") {
        return value.is_array() || value.is_string() || value.is_object() || !is_defined(value);
    }
    if (name == "number") { return value.is_number() || value.is_boolean(); }
    if (name == "integer") { return value.is_number_integer(); }
    if (name == "float") { return value.is_number_float(); }
    if (name == "boolean") { return value.is_boolean(); }
    if (name == "true") { return value.is_boolean() && value.get<bool>(); }
    if (name == "false") { return value.is_boolean() && !value.get<bool>(); }
    if (name == "callable") {
        return handle_number(value, JinjaHandle::macro) || handle_number(value, JinjaHandle::function);
    }
    if (name == "lower" || name == "upper") { return with_case(name, text_of_value(value)) == text_of_value(value); }
    if (name == "in") { return contains_value(given.get(0, "seq"), value); }
    if (name == "odd" || name == "even" || name == "divisibleby") {
        const std::int64_t by = name == "divisibleby" ? whole_or(given.get(0, "num"), 0, name) : 2;
        if (by == 0 || !value.is_number_integer()) { render_error("whole numbers for " + name, kind_of_value(value)); }
        return (value.get<std::int64_t>() % by == 0) == (name != "odd");
    }
    return compared(name, value, given.get(0, "other"));
}

Value call_jinja_method(const std::string& name, const Value& value, const Arguments& given) {
    if (value.is_string()) {
        if (auto result = text_method(name, value.get_ref<const std::string&>(), given)) { return *result; }
    } else if (value.is_object()) {
        if (name == "items") { return pairs_of(value); }
        if (name == "keys") { return Value(elements_of(value)); }
        if (name == "values") {
            Value all = Value::array();
            for (const auto& [key, part] : value.items()) { all.push_back(part); }
            return all;
        }
        if (name == "get") {
            const Value found = element_of(value, given.get(0, "key")), otherwise = given.get(1, "default");
            return is_defined(found) ? found : is_defined(otherwise) ? otherwise : Value();
        }
    } else if (value.is_array() && (name == "index" || name == "count")) {
        const Value what = given.get(0, "value");
        if (name == "count") { return std::count(value.begin(), value.end(), what); }
        const auto found = std::find(value.begin(), value.end(), what);
        if (found == value.end()) { render_error("an element of the list for index", text_of_value(what)); }
        return found - value.begin();
    }
    render_error("a method that heed knows of " + kind_of_value(value), name);
}

}  // namespace heed::text
