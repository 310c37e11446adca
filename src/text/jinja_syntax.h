#pragma once
/// What reads statements and what reads the expressions in them share.
#include <string>
#include <string_view>

#include "text/jinja.h"

namespace heed::text {

constexpr int jinja_depth = 48;

[[noreturn]] void jinja_error(const std::string& expected, std::string_view got);

JinjaExpression parse_jinja_expression(std::string_view text);
/// "x in list if condition": names, expression and filter of a loop.
void parse_jinja_loop_head(std::string_view text, JinjaNode& node);
/// "name(a, b=1)": name, parameters and defaults of a macro.
void parse_jinja_macro_head(std::string_view text, JinjaNode& node);

}  // namespace heed::text
