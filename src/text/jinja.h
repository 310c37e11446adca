#pragma once
/// The part of Jinja that chat templates are made of: text, {{ }}, for, if, set, macro, break and continue, with
/// trim_blocks and lstrip_blocks, as transformers renders them.
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace heed::text {

using JinjaValue = nlohmann::ordered_json;  // jinja_values.h says how it stands for what JSON has not

struct JinjaExpression {
    enum class Kind {
        literal,
        name,
        attribute,
        index,
        slice,
        call,
        filter,
        unary,
        binary,
        choice,
        test,
        list,
        object
    } kind = Kind::literal;
    std::string text;                    // name, operator, filter, test
    JinjaValue value;                    // literal
    std::vector<JinjaExpression> parts;  // operands, arguments; of an object: key, value, key, value
    std::vector<std::string> keywords;   // of a call, filter or test: names of the last arguments
    bool negated = false;                // is not, not in
};

struct JinjaNode {
    enum class Kind { text, output, branch, loop, set, set_text, macro, stop_loop, next_round } kind = Kind::text;
    std::string text;                       // text; set: the name, "ns.name" for a field; macro: its name
    std::vector<std::string> names;         // loop: its variables; macro: its parameters
    std::vector<JinjaExpression> defaults;  // macro: of its last parameters
    JinjaExpression expression;             // output, loop, set; branch: the condition
    JinjaExpression filter;                 // loop: `if` behind it
    bool filtered = false;
    std::vector<JinjaNode> body, otherwise;
};

/// Error where the text is not of that part.
std::vector<JinjaNode> parse_jinja(std::string_view text);

/// Bounded in steps and in size, as a template comes from a stranger.
std::string render_jinja(const std::vector<JinjaNode>& nodes, JinjaValue variables);

}  // namespace heed::text
