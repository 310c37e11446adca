#include "text/json_field.h"

#include <heed/error.h>

#include "base/refuse.h"
#include "io/file.h"
#include "text/utf8.h"

namespace heed::text {

using nlohmann::json;

namespace {

const json nothing;

/// How many brackets are open at once at most; strings do not count.
int nesting_of(std::string_view text) {
    int depth = 0, deepest = 0;
    bool in_string = false;
    for (std::size_t at = 0; at < text.size(); ++at) {
        const char c = text[at];
        if (in_string) {
            at += c == '\\' ? 1 : 0;
            in_string = c != '"';
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            deepest = std::max(deepest, ++depth);
        } else if (c == '}' || c == ']') {
            --depth;
        }
    }
    return deepest;
}

std::string brief(const json& value) {
    if (value.is_object()) { return "an object"; }
    if (value.is_array()) { return "a list of " + std::to_string(value.size()); }
    constexpr std::size_t longest = 60;
    const std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
    return text.size() > longest ? text.substr(0, longest) + "..." : text;
}

}  // namespace

void JsonField::fail(const std::string& expected) const { fail(expected, brief(*value_)); }

void JsonField::fail(const std::string& expected, const std::string& got) const {
    refuse("Tokenizer", name_, expected, got);
}

JsonField JsonField::operator[](const char* key) const {
    if (!value_->is_object()) { fail("an object"); }
    const auto found = value_->find(key);
    return {found == value_->end() ? nothing : *found, name_ + "." + key};
}

void JsonField::for_each(const std::function<void(const JsonField&)>& visit) const {
    if (!value_->is_array()) { fail("a list"); }
    std::size_t index = 0;
    for (const json& element : *value_) { visit({element, name_ + "[" + std::to_string(index++) + "]"}); }
}

const std::string& JsonField::text() const {
    if (!value_->is_string()) { fail("a string"); }
    return value_->get_ref<const std::string&>();
}

std::string JsonField::text_or(std::string_view otherwise) const { return is_null() ? std::string(otherwise) : text(); }

bool JsonField::flag_or(bool otherwise) const {
    if (is_null()) { return otherwise; }
    if (!value_->is_boolean()) { fail("true or false"); }
    return value_->get<bool>();
}

std::int64_t JsonField::number(std::int64_t low, std::int64_t high) const {
    const bool fits =
        value_->is_number_integer() &&
        !(value_->is_number_unsigned() && value_->get<std::uint64_t>() > static_cast<std::uint64_t>(high)) &&
        value_->get<std::int64_t>() >= low && value_->get<std::int64_t>() <= high;
    if (!fits) { fail("a whole number from " + std::to_string(low) + " to " + std::to_string(high)); }
    return value_->get<std::int64_t>();
}

std::int64_t JsonField::number_or(std::int64_t otherwise, std::int64_t low, std::int64_t high) const {
    return is_null() ? otherwise : number(low, high);
}

char32_t JsonField::character() const {
    const std::string& given = text();
    if (characters_in(given) != 1) { fail("one character"); }
    return character_at(given, 0).code;
}

json parse_json(std::string_view text, const char* name, std::size_t size_limit, int depth_limit) {
    const JsonField whole(nothing, name);
    if (text.size() > size_limit) {
        whole.fail("at most " + std::to_string(size_limit) + " bytes", std::to_string(text.size()));
    }
    if (nesting_of(text) > depth_limit) { whole.fail("at most " + std::to_string(depth_limit) + " levels", "more"); }
    try {
        return json::parse(text.begin(), text.end());
    } catch (const json::parse_error& error) {
        whole.fail("JSON text", "something else at byte " + std::to_string(error.byte));
    } catch (const json::exception&) { whole.fail("JSON numbers that a double can hold", "a larger one"); }
}

}  // namespace heed::text
