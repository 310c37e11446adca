#include <heed/error.h>

#include <algorithm>

#include "io/file.h"
#include "text/jinja.h"
#include "text/utf8.h"

namespace heed::text {
namespace {

using Expression = JinjaExpression;
using Kind = Expression::Kind;
using Value = JinjaValue;

constexpr std::size_t rendered_limit = std::size_t{1} << 26U;
constexpr std::int64_t step_limit = 200'000;

[[noreturn]] void render_error(const std::string& expected, const std::string& got) {
    throw Error("[ChatTemplate::render] template: expected " + expected + ", got " + in_quotes(got));
}

Value undefined() { return Value(nlohmann::detail::value_t::discarded); }
bool is_defined(const Value& value) { return !value.is_discarded(); }

bool is_true(const Value& value) {
    if (value.is_discarded() || value.is_null()) { return false; }
    if (value.is_boolean()) { return value.get<bool>(); }
    if (value.is_number()) { return value.get<double>() != 0; }
    if (value.is_string()) { return !value.get_ref<const std::string&>().empty(); }
    return !value.empty();
}

std::string text_of_value(const Value& value) {
    if (value.is_discarded()) { return {}; }
    if (value.is_string()) { return value.get<std::string>(); }
    if (value.is_null()) { return "None"; }
    if (value.is_boolean()) { return value.get<bool>() ? "True" : "False"; }
    if (value.is_number()) { return value.dump(); }
    render_error("text to write", value.is_array() ? "a list" : "a mapping");
}

std::string stripped(const std::string& text, bool left, bool right, const std::string& what = " \t\r\n\f\v") {
    std::size_t begin = left ? text.find_first_not_of(what) : 0;
    if (begin == std::string::npos) { return {}; }
    const std::size_t end = right ? text.find_last_not_of(what) + 1 : text.size();
    return text.substr(begin, end - begin);
}

std::string replaced_in(std::string text, const std::string& from, const std::string& to) {
    if (from.empty()) { return text; }
    for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
        text.replace(at, from.size(), to);
        if (text.size() > rendered_limit) { render_error("less text", "more than 64 MB"); }
    }
    return text;
}

/// As json.dumps: a space behind commas and colons.
std::string json_text(const Value& value, int indent) {
    if (indent > 0) { return value.dump(indent, ' ', false, Value::error_handler_t::replace); }
    if (value.is_object() || value.is_array()) {
        std::string text = value.is_object() ? "{" : "[";
        bool first = true;
        for (const auto& [key, part] : value.items()) {
            text += first ? "" : ", ";
            first = false;
            if (value.is_object()) { text += Value(key).dump(-1, ' ', false, Value::error_handler_t::replace) + ": "; }
            text += json_text(part, 0);
        }
        return text + (value.is_object() ? "}" : "]");
    }
    return value.dump(-1, ' ', false, Value::error_handler_t::replace);
}

Value split_text(const std::string& text, const Value& by, std::int64_t most) {
    Value parts = Value::array();
    if (!by.is_string()) {  // at white space
        for (std::size_t at = 0; (at = text.find_first_not_of(" \t\r\n", at)) != std::string::npos;) {
            const std::size_t end = std::min(text.find_first_of(" \t\r\n", at), text.size());
            parts.push_back(text.substr(at, end - at));
            at = end;
        }
        return parts;
    }
    const std::string& what = by.get_ref<const std::string&>();
    if (what.empty()) { render_error("something to split at", "nothing"); }
    std::size_t at = 0;
    for (std::size_t hit = 0; (most < 0 || static_cast<std::int64_t>(parts.size()) < most) &&
                              (hit = text.find(what, at)) != std::string::npos;
         at = hit + what.size()) {
        parts.push_back(text.substr(at, hit - at));
    }
    parts.push_back(text.substr(at));
    return parts;
}

class Renderer {
public:
    explicit Renderer(Value variables) { scopes_.push_back(std::move(variables)); }

    std::string run(const std::vector<JinjaNode>& nodes) {
        write(nodes);
        return std::move(out_);
    }

private:
    void step() {
        if (++steps_ > step_limit) { render_error("fewer steps", "more than 200000"); }
    }
    void put(const std::string& text) {
        out_ += text;
        if (out_.size() > rendered_limit) { render_error("less text", "more than 64 MB"); }
    }

    void write(const std::vector<JinjaNode>& nodes) {
        for (const JinjaNode& node : nodes) {
            step();
            switch (node.kind) {
                case JinjaNode::Kind::text: put(node.text); break;
                case JinjaNode::Kind::output: put(text_of_value(evaluate(node.expression))); break;
                case JinjaNode::Kind::branch:
                    write(is_true(evaluate(node.expression)) ? node.body : node.otherwise);
                    break;
                case JinjaNode::Kind::set: assign(node.text, evaluate(node.expression)); break;
                case JinjaNode::Kind::loop: loop(node); break;
            }
        }
    }

    /// Names live in the innermost scope; fields of a namespace where the namespace is.
    void assign(const std::string& name, Value value) {
        const std::size_t dot = name.find('.');
        if (dot == std::string::npos) {
            scopes_.back()[name] = std::move(value);
            return;
        }
        for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
            const auto found = scope->find(name.substr(0, dot));
            if (found == scope->end()) { continue; }
            if (!found->is_object()) { break; }
            (*found)[name.substr(dot + 1)] = std::move(value);
            return;
        }
        render_error("a namespace", name);
    }

    void loop(const JinjaNode& node) {
        const Value given = evaluate(node.expression);
        std::vector<Value> items;
        if (given.is_object()) {
            for (const auto& [key, value] : given.items()) {
                items.push_back(node.names.size() == 2 ? Value::array({key, value}) : Value(key));
            }
        } else if (given.is_array()) {
            items.assign(given.begin(), given.end());
        } else if (is_defined(given) && !given.is_null()) {
            render_error("a list to go through", given.dump(-1, ' ', true, Value::error_handler_t::replace));
        }
        scopes_.push_back(Value::object());
        std::vector<Value> kept;
        for (Value& item : items) {
            bind(node, item);
            if (!node.filtered || is_true(evaluate(node.filter))) { kept.push_back(std::move(item)); }
        }
        for (std::size_t n = 0; n < kept.size(); ++n) {
            step();
            scopes_.back() = Value::object();
            bind(node, kept[n]);
            scopes_.back()["loop"] = {{"index", n + 1},
                                      {"index0", n},
                                      {"first", n == 0},
                                      {"last", n + 1 == kept.size()},
                                      {"length", kept.size()},
                                      {"revindex", kept.size() - n},
                                      {"revindex0", kept.size() - n - 1}};
            if (n > 0) { scopes_.back()["loop"]["previtem"] = kept[n - 1]; }
            if (n + 1 < kept.size()) { scopes_.back()["loop"]["nextitem"] = kept[n + 1]; }
            write(node.body);
        }
        scopes_.pop_back();
        if (kept.empty()) { write(node.otherwise); }
    }

    void bind(const JinjaNode& node, const Value& item) {
        if (node.names.size() == 1) {
            scopes_.back()[node.names[0]] = item;
            return;
        }
        if (!item.is_array() || item.size() != 2) { render_error("pairs", "something else"); }
        scopes_.back()[node.names[0]] = item[0];
        scopes_.back()[node.names[1]] = item[1];
    }

    /// Where a name, a field or an element lives, without a copy of what it is part of; null where it is made anew.
    const Value* place(const Expression& e) {
        if (e.kind == Kind::name) {
            for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
                if (const auto found = scope->find(e.text); found != scope->end()) { return &*found; }
            }
            return nullptr;
        }
        if (e.kind != Kind::attribute && e.kind != Kind::index) { return nullptr; }
        const Value* whole = place(e.parts[0]);
        if (whole == nullptr) { return nullptr; }
        const Value key = e.kind == Kind::attribute ? Value(e.text) : evaluate(e.parts[1]);
        if (whole->is_object() && key.is_string()) {
            const auto found = whole->find(key.get_ref<const std::string&>());
            return found == whole->end() ? nullptr : &*found;
        }
        const bool inside = whole->is_array() && key.is_number_integer() && key.get<std::int64_t>() >= 0 &&
                            key.get<std::int64_t>() < static_cast<std::int64_t>(whole->size());
        return inside ? &(*whole)[key.get<std::size_t>()] : nullptr;
    }

    Value evaluate(const Expression& e) {
        step();
        if (const Value* found = place(e)) { return *found; }
        switch (e.kind) {
            case Kind::literal: return e.value;
            case Kind::name: return lookup(e.text);
            case Kind::attribute: return field(evaluate(e.parts[0]), e.text);
            case Kind::index: return indexed(evaluate(e.parts[0]), evaluate(e.parts[1]));
            case Kind::slice: return sliced(e);
            case Kind::call: return called(e);
            case Kind::filter: return filtered(e);
            case Kind::unary: return unary(e);
            case Kind::binary: return binary(e);
            case Kind::choice: return evaluate(e.parts[is_true(evaluate(e.parts[0])) ? 1 : 2]);
            case Kind::test: return tested(e) != e.negated;
            case Kind::list: {
                Value list = Value::array();
                for (const Expression& part : e.parts) { list.push_back(evaluate(part)); }
                return list;
            }
            case Kind::object: {
                Value object = Value::object();
                for (std::size_t n = 0; n + 1 < e.parts.size(); n += 2) {
                    object[text_of_value(evaluate(e.parts[n]))] = evaluate(e.parts[n + 1]);
                }
                return object;
            }
        }
        return undefined();
    }

    Value lookup(const std::string& name) const {
        for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
            const auto found = scope->find(name);
            if (found != scope->end()) { return *found; }
        }
        return undefined();
    }

    static Value field(const Value& value, const std::string& name) {
        if (!value.is_object()) {
            if (!is_defined(value)) { render_error("a variable that is defined", name); }
            return undefined();
        }
        const auto found = value.find(name);
        return found == value.end() ? undefined() : *found;
    }

    static Value indexed(const Value& value, const Value& key) {
        if (key.is_string()) { return field(value, key.get<std::string>()); }
        if (!key.is_number_integer()) { render_error("an index", text_of_value(key)); }
        std::int64_t n = key.get<std::int64_t>();
        if (value.is_string()) {
            std::vector<std::string> characters = characters_of(value.get_ref<const std::string&>());
            n += n < 0 ? static_cast<std::int64_t>(characters.size()) : 0;
            if (n < 0 || n >= static_cast<std::int64_t>(characters.size())) { return undefined(); }
            return characters[static_cast<std::size_t>(n)];
        }
        if (!value.is_array()) { render_error("a list", "something else"); }
        n += n < 0 ? static_cast<std::int64_t>(value.size()) : 0;
        if (n < 0 || n >= static_cast<std::int64_t>(value.size())) { return undefined(); }
        return value[static_cast<std::size_t>(n)];
    }

    static std::vector<std::string> characters_of(const std::string& text) {
        std::vector<std::string> characters;
        for (std::size_t at = 0; at < text.size();) {
            const auto size = static_cast<std::size_t>(character_at(text, at).size);
            characters.push_back(text.substr(at, size));
            at += size;
        }
        return characters;
    }

    Value sliced(const Expression& e) {
        const Value value = evaluate(e.parts[0]);
        std::vector<Value> items;
        if (value.is_string()) {
            for (std::string& character : characters_of(value.get_ref<const std::string&>())) {
                items.emplace_back(std::move(character));
            }
        } else if (value.is_array()) {
            items.assign(value.begin(), value.end());
        } else {
            render_error("a list or text to slice", "something else");
        }
        const auto size = static_cast<std::int64_t>(items.size());
        const auto bound = [&](const Expression& part, std::int64_t otherwise) {
            const Value given = evaluate(part);
            if (given.is_null()) { return otherwise; }
            if (!given.is_number_integer()) { render_error("a whole number", text_of_value(given)); }
            const std::int64_t n = given.get<std::int64_t>();
            return std::clamp<std::int64_t>(n < 0 ? n + size : n, 0, size);
        };
        const Value stride = evaluate(e.parts[3]);
        const bool backwards = stride.is_number_integer() && stride.get<std::int64_t>() == -1;
        if (!stride.is_null() && !backwards) {
            render_error("a slice without a step, or with -1", text_of_value(stride));
        }
        const std::int64_t first = bound(e.parts[1], 0), last = bound(e.parts[2], size);
        std::vector<Value> kept(items.begin() + first, items.begin() + std::max(first, last));
        if (backwards) { std::reverse(kept.begin(), kept.end()); }
        if (value.is_array()) { return kept; }
        std::string text;
        for (const Value& character : kept) { text += character.get_ref<const std::string&>(); }
        return text;
    }

    Value unary(const Expression& e) {
        const Value value = evaluate(e.parts[0]);
        if (e.text == "not") { return !is_true(value); }
        if (!value.is_number_integer()) { render_error("a whole number", text_of_value(value)); }
        return -value.get<std::int64_t>();
    }

    Value binary(const Expression& e) {
        Value left = evaluate(e.parts[0]);
        if (e.text == "and") { return is_true(left) ? evaluate(e.parts[1]) : left; }
        if (e.text == "or") { return is_true(left) ? left : evaluate(e.parts[1]); }
        const Value right = evaluate(e.parts[1]);
        if (e.text == "in") { return contains(right, left) != e.negated; }
        if (e.text == "~") { return text_of_value(left) + text_of_value(right); }
        if (e.text == "==" || e.text == "!=") {
            const bool same =
                is_defined(left) && is_defined(right) ? left == right : is_defined(left) == is_defined(right);
            return same == (e.text == "==");
        }
        if (e.text == "+" && left.is_string() && right.is_string()) {
            return left.get_ref<const std::string&>() + right.get_ref<const std::string&>();
        }
        if (e.text == "+" && left.is_array() && right.is_array()) {
            for (const Value& item : right) { left.push_back(item); }
            return left;
        }
        if (!left.is_number_integer() || !right.is_number_integer()) {
            render_error("two numbers or two texts for " + e.text,
                         is_defined(left) && is_defined(right) ? "others" : "a variable that is not defined");
        }
        return computed(e.text, left.get<std::int64_t>(), right.get<std::int64_t>());
    }

    static Value computed(const std::string& sign, std::int64_t a, std::int64_t b) {
        constexpr std::int64_t most = std::int64_t{1} << 31;
        if (std::max(std::abs(a), std::abs(b)) > most) { render_error("numbers below 2^31", "larger ones"); }
        if (sign == "+") { return a + b; }
        if (sign == "-") { return a - b; }
        if (sign == "*") { return a * b; }
        if (sign == "<") { return a < b; }
        if (sign == ">") { return a > b; }
        if (sign == "<=") { return a <= b; }
        if (sign == ">=") { return a >= b; }
        if (b == 0) { render_error("a divisor", "0"); }
        const std::int64_t remainder = (a % b + b) % b;  // of the divisor's sign, as in Python
        return sign == "%" ? remainder : (a - remainder) / b;
    }

    static bool contains(const Value& whole, const Value& part) {
        if (whole.is_string() && part.is_string()) {
            return whole.get_ref<const std::string&>().find(part.get_ref<const std::string&>()) != std::string::npos;
        }
        if (whole.is_object() && part.is_string()) { return whole.contains(part.get_ref<const std::string&>()); }
        return whole.is_array() && std::find(whole.begin(), whole.end(), part) != whole.end();
    }

    bool tested(const Expression& e) {
        const Value value = evaluate(e.parts[0]);
        if (e.text == "defined") { return is_defined(value); }
        if (e.text == "undefined") { return !is_defined(value); }
        if (e.text == "none") { return value.is_null(); }
        if (e.text == "string") { return value.is_string(); }
        if (e.text == "mapping") { return value.is_object(); }
        if (e.text == "sequence" || e.text == "iterable") {
            return value.is_array() || value.is_string() || value.is_object();
        }
        if (e.text == "number") { return value.is_number(); }
        if (e.text == "boolean") { return value.is_boolean(); }
        if (e.text == "true") { return value.is_boolean() && value.get<bool>(); }
        if (e.text == "false") { return value.is_boolean() && !value.get<bool>(); }
        render_error("a test that heed knows", e.text);
    }

    Value filtered(const Expression& e) {
        Value value = evaluate(e.parts[0]);
        const auto argument = [&](std::size_t n) {
            return n + 1 < e.parts.size() ? evaluate(e.parts[n + 1]) : undefined();
        };
        if (e.text == "default" || e.text == "d") { return is_defined(value) ? value : argument(0); }
        if (e.text == "tojson") {
            const Value indent = argument(0);
            return json_text(value, indent.is_number_integer() ? indent.get<int>() : 0);
        }
        if (e.text == "length" || e.text == "count") {
            return value.is_string()   ? characters_in(value.get_ref<const std::string&>())
                   : is_defined(value) ? value.size()
                                       : 0;
        }
        if (e.text == "first") { return indexed(value, 0); }
        if (e.text == "last") { return indexed(value, -1); }
        if (e.text == "list") { return value; }
        if (e.text == "items") { return pairs_of(value); }
        if (e.text == "string") { return text_of_value(value); }
        if (e.text == "safe") { return value; }
        if (e.text == "int") {
            return value.is_string() ? Value(std::strtol(value.get_ref<const std::string&>().c_str(), nullptr, 10))
                                     : value;
        }
        if (e.text == "join") { return joined_text(value, argument(0)); }
        if (!value.is_string()) { render_error("text for the filter " + e.text, "something else"); }
        std::vector<Value> arguments;
        for (std::size_t n = 1; n < e.parts.size(); ++n) { arguments.push_back(evaluate(e.parts[n])); }
        return text_method(e.text == "trim" ? "strip" : e.text, value.get_ref<const std::string&>(), arguments);
    }

    static Value joined_text(const Value& list, const Value& between) {
        if (!list.is_array()) { render_error("a list to join", "something else"); }
        std::string text;
        for (std::size_t n = 0; n < list.size(); ++n) {
            text += (n > 0 ? text_of_value(between) : "") + text_of_value(list[n]);
        }
        return text;
    }

    static Value pairs_of(const Value& object) {
        Value pairs = Value::array();
        if (!object.is_object()) { render_error("a mapping", "something else"); }
        for (const auto& [key, value] : object.items()) { pairs.push_back(Value::array({key, value})); }
        return pairs;
    }

    static Value text_method(const std::string& method, const std::string& text, const std::vector<Value>& arguments) {
        const auto given = [&](std::size_t n) -> std::string {
            if (n >= arguments.size() || !arguments[n].is_string()) {
                render_error("text as an argument of " + method, "something else");
            }
            return arguments[n].get<std::string>();
        };
        const std::string what = arguments.empty() || !arguments[0].is_string() ? " \t\r\n\f\v" : given(0);
        const auto changed = [&](int (*change)(int)) {
            std::string result = text;
            for (char& c : result) {
                if (static_cast<unsigned char>(c) < 128) {
                    c = static_cast<char>(change(static_cast<unsigned char>(c)));
                }
            }
            return result;
        };
        if (method == "strip") { return stripped(text, true, true, what); }
        if (method == "lstrip") { return stripped(text, true, false, what); }
        if (method == "rstrip") { return stripped(text, false, true, what); }
        if (method == "upper") { return changed(std::toupper); }
        if (method == "lower") { return changed(std::tolower); }
        if (method == "capitalize" || method == "title") {
            std::string result = changed(std::tolower);
            bool begin = true;
            for (char& c : result) {
                const bool letter = std::isalpha(static_cast<unsigned char>(c)) != 0;
                if (letter && begin) { c = static_cast<char>(std::toupper(static_cast<unsigned char>(c))); }
                begin = method == "title" ? !letter : false;
            }
            return result;
        }
        if (method == "startswith") { return text.compare(0, given(0).size(), given(0)) == 0; }
        if (method == "endswith") {
            return text.size() >= given(0).size() &&
                   text.compare(text.size() - given(0).size(), std::string::npos, given(0)) == 0;
        }
        if (method == "replace") { return replaced_in(text, given(0), given(1)); }
        if (method == "split") {
            const std::int64_t most =
                arguments.size() > 1 && arguments[1].is_number_integer() ? arguments[1].get<std::int64_t>() : -1;
            return split_text(text, arguments.empty() ? Value() : arguments[0], most);
        }
        render_error("a filter or method that heed knows", method);
    }

    Value called(const Expression& e) {
        const Expression& function = e.parts[0];
        std::vector<Value> arguments;
        for (std::size_t n = 1; n < e.parts.size(); ++n) { arguments.push_back(evaluate(e.parts[n])); }
        if (function.kind == Kind::attribute) {
            const Value of = evaluate(function.parts[0]);
            if (of.is_string()) { return text_method(function.text, of.get_ref<const std::string&>(), arguments); }
            if (of.is_object() && function.text == "items") { return pairs_of(of); }
            if (of.is_object() && function.text == "get" && !arguments.empty()) {
                const Value found = indexed(of, arguments[0]);
                return is_defined(found) ? found : arguments.size() > 1 ? arguments[1] : Value();
            }
            render_error("a method that heed knows", function.text);
        }
        if (function.kind == Kind::name && function.text == "raise_exception") {
            throw Error("[ChatTemplate::render] messages: " +
                        (arguments.empty() ? std::string("refused by the template") : text_of_value(arguments[0])));
        }
        if (function.kind == Kind::name && (function.text == "namespace" || function.text == "dict")) {
            Value made = Value::object();
            const std::size_t plain = arguments.size() - e.keywords.size();
            for (std::size_t n = 0; n < e.keywords.size(); ++n) { made[e.keywords[n]] = arguments[plain + n]; }
            return made;
        }
        if (function.kind == Kind::name && function.text == "range") { return numbers(arguments); }
        render_error("a function that heed knows", function.kind == Kind::name ? function.text : "another");
    }

    static Value numbers(const std::vector<Value>& arguments) {
        for (const Value& value : arguments) {
            if (!value.is_number_integer()) { render_error("whole numbers in range", "others"); }
        }
        if (arguments.empty() || arguments.size() > 2) { render_error("one or two numbers in range", "another count"); }
        const std::int64_t first = arguments.size() == 2 ? arguments[0].get<std::int64_t>() : 0,
                           last = arguments.back().get<std::int64_t>();
        constexpr std::int64_t most = 10000;
        if (last - first > most) { render_error("a range of at most 10000", "a longer one"); }
        Value list = Value::array();
        for (std::int64_t n = first; n < last; ++n) { list.push_back(n); }
        return list;
    }

    std::vector<Value> scopes_;
    std::string out_;
    std::int64_t steps_ = 0;
};

}  // namespace

std::string render_jinja(const std::vector<JinjaNode>& nodes, JinjaValue variables) {
    return Renderer(std::move(variables)).run(nodes);
}

}  // namespace heed::text
