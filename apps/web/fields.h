#pragma once
/// Fields of a JSON request: each with its bounds, each refusal naming the field, what was expected and what it got.

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "http.h"
#include "json.h"

namespace heed::web {

inline HttpError bad_field(const std::string& name, const std::string& expected, const Json& got) {
    constexpr std::size_t longest = 80;
    std::string text = got.dump(-1, ' ', false, Json::error_handler_t::replace);
    if (text.size() > longest) { text = text.substr(0, longest) + " ..."; }
    return {400, name + ": expected " + expected + ", got " + text};
}

/// The body of a request: an object, not nested deeper than anything here needs.
inline Json parse_object(const std::string& body) {
    constexpr int deepest = 16;
    const Json json = Json::parse(body.empty() ? "{}" : body, [](int depth, Json::parse_event_t, Json&) {
        if (depth > deepest) { throw HttpError{400, "the body: expected JSON nested at most 16 deep, got more"}; }
        return true;
    });
    if (!json.is_object()) { throw bad_field("the body", "an object", json); }
    return json;
}

inline std::int64_t integer_field(const Json& object, const char* name, std::int64_t least, std::int64_t most,
                                  std::int64_t otherwise) {
    const auto at = object.find(name);
    if (at == object.end() || at->is_null()) { return otherwise; }
    const std::string expected = "a whole number from " + std::to_string(least) + " to " + std::to_string(most);
    if (!at->is_number_integer()) { throw bad_field(name, expected, *at); }
    if (at->is_number_unsigned() &&
        at->get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        throw bad_field(name, expected, *at);
    }
    const auto value = at->get<std::int64_t>();
    if (value < least || value > most) { throw bad_field(name, expected, *at); }
    return value;
}

inline double number_field(const Json& object, const char* name, double least, double most, double otherwise) {
    const auto at = object.find(name);
    if (at == object.end() || at->is_null()) { return otherwise; }
    const double value = at->is_number() ? at->get<double>() : std::nan("");
    if (!(value >= least && value <= most)) {
        throw bad_field(name, "a number from " + Json(least).dump() + " to " + Json(most).dump(), *at);
    }
    return value;
}

inline bool bool_field(const Json& object, const char* name, bool otherwise) {
    const auto at = object.find(name);
    if (at == object.end() || at->is_null()) { return otherwise; }
    if (!at->is_boolean()) { throw bad_field(name, "true or false", *at); }
    return at->get<bool>();
}

inline std::string string_field(const Json& object, const char* name, std::size_t longest,
                                const std::string& otherwise) {
    const auto at = object.find(name);
    if (at == object.end() || at->is_null()) { return otherwise; }
    if (!at->is_string() || at->get_ref<const std::string&>().size() > longest) {
        throw bad_field(name, "a text of at most " + std::to_string(longest) + " bytes", *at);
    }
    return at->get<std::string>();
}

}  // namespace heed::web
