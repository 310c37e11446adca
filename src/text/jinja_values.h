#pragma once
/// What values are in templates: those of JSON, and a few that JSON has not.
///
/// Not defined is `discarded`. A namespace, which `set` changes from inside a loop, a macro and a function are numbers
/// of tables of the renderer's, kept as `binary`.
#include <optional>
#include <string>
#include <vector>

#include "text/jinja.h"

namespace heed::text {

constexpr std::size_t rendered_limit = std::size_t{1} << 26U;

[[noreturn]] void render_error(const std::string& expected, const std::string& got);

JinjaValue undefined();
inline bool is_defined(const JinjaValue& value) { return !value.is_discarded(); }
bool is_true(const JinjaValue& value);

enum class JinjaHandle : std::uint8_t { name_space = 1, macro = 2, function = 3 };
JinjaValue handle_value(JinjaHandle kind, std::size_t number);
std::optional<std::size_t> handle_number(const JinjaValue& value, JinjaHandle kind);

/// What Python's str() gives.
std::string text_of_value(const JinjaValue& value);
/// "a list", "text": for messages.
std::string kind_of_value(const JinjaValue& value);
/// As Python compares: none where the two have no order.
std::optional<int> order_of(const JinjaValue& a, const JinjaValue& b);

/// As json.dumps writes it.
struct JsonStyle {
    std::optional<std::int64_t> indent = std::nullopt;
    bool ascii = false, sorted = false;
};
std::string json_text(const JinjaValue& value, const JsonStyle& style);

/// Arguments of a call, a filter or a test.
struct JinjaArguments {
    std::vector<JinjaValue> plain;
    std::vector<std::pair<std::string, JinjaValue>> named;

    /// By place or by name; not defined where there is none.
    JinjaValue get(std::size_t place, std::string_view name) const;
};

bool is_jinja_filter(std::string_view name);
bool is_jinja_test(std::string_view name);
JinjaValue apply_jinja_filter(const std::string& name, const JinjaValue& value, const JinjaArguments& arguments);
bool apply_jinja_test(const std::string& name, const JinjaValue& value, const JinjaArguments& arguments);
/// value.name(arguments), of a text, a list or a mapping.
JinjaValue call_jinja_method(const std::string& name, const JinjaValue& value, const JinjaArguments& arguments);

JinjaValue element_of(const JinjaValue& value, const JinjaValue& key);
bool contains_value(const JinjaValue& whole, const JinjaValue& part);
std::vector<std::string> characters_of(const std::string& text);
/// The elements that a loop sees.
std::vector<JinjaValue> elements_of(const JinjaValue& value);
/// printf's %s and %d, and no more.
std::string formatted(const std::string& text, const std::vector<JinjaValue>& values);

}  // namespace heed::text
