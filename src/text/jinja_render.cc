#include <heed/error.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <deque>

#include "base/refuse.h"
#include "text/jinja_values.h"

namespace heed::text {
namespace {

using Expression = JinjaExpression;
using Kind = Expression::Kind;
using Value = JinjaValue;

constexpr std::int64_t step_limit = 200'000;
constexpr std::int64_t copy_limit = 4'000'000;  // values; a template may double a list again and again
constexpr int call_limit = 40;                  // macros within macros

constexpr std::string_view functions[] = {"raise_exception", "strftime_now", "range", "namespace", "dict"};

/// How many values a value is made of; no further than `most`.
std::int64_t weight_of(const Value& value, std::int64_t most) {
    std::int64_t weight = 1;
    if (value.is_string()) { return 1 + static_cast<std::int64_t>(value.get_ref<const std::string&>().size() / 64); }
    if (!value.is_structured()) { return 1; }
    for (const Value& part : value) {
        if (weight > most) { break; }
        weight += weight_of(part, most - weight);
    }
    return weight;
}

/// The time that a template asks for, in the local zone.
std::string time_text(const std::string& format) {
    const std::time_t now = std::time(nullptr);
    std::tm parts{};
    localtime_r(&now, &parts);
    char buffer[256];
    if (format.size() > 64) { render_error("at most 64 characters for strftime_now", format); }
    return {buffer, std::strftime(buffer, sizeof(buffer), format.c_str(), &parts)};
}

class Renderer {
public:
    explicit Renderer(Value variables) { scopes_.push_back(std::move(variables)); }

    std::string run(const std::vector<JinjaNode>& nodes) {
        write(nodes);
        return std::move(out_);
    }

private:
    enum class Flow { on, next_round, stop_loop };

    void step() {
        if (++steps_ > step_limit) { render_error("fewer steps", "more than 200000"); }
    }
    /// Counts a copy.
    const Value& charged(const Value& value) {
        copied_ += weight_of(value, copy_limit);
        if (copied_ > copy_limit) { render_error("less to copy", "more than 4000000 values"); }
        return value;
    }
    void put(const std::string& text) {
        out_ += text;
        if (out_.size() > rendered_limit) { render_error("less text", "more than 64 MB"); }
    }

    Flow write(const std::vector<JinjaNode>& nodes) {
        for (const JinjaNode& node : nodes) {
            step();
            Flow flow = Flow::on;
            switch (node.kind) {
                case JinjaNode::Kind::text: put(node.text); break;
                case JinjaNode::Kind::output: put(text_of_value(evaluate(node.expression))); break;
                case JinjaNode::Kind::branch:
                    flow = write(is_true(evaluate(node.expression)) ? node.body : node.otherwise);
                    break;
                case JinjaNode::Kind::set: assign(node.text, evaluate(node.expression)); break;
                case JinjaNode::Kind::set_text: {
                    std::string kept;
                    kept.swap(out_);
                    write(node.body);
                    kept.swap(out_);
                    assign(node.text, std::move(kept));
                    break;
                }
                case JinjaNode::Kind::macro:
                    macros_.push_back(&node);
                    assign(node.text, handle_value(JinjaHandle::macro, macros_.size() - 1));
                    break;
                case JinjaNode::Kind::loop: flow = loop(node); break;
                case JinjaNode::Kind::stop_loop: return Flow::stop_loop;
                case JinjaNode::Kind::next_round: return Flow::next_round;
            }
            if (flow != Flow::on) { return flow; }
        }
        return Flow::on;
    }

    /// Names live in the innermost scope; fields of a namespace where the namespace is.
    void assign(const std::string& name, Value value) {
        const std::size_t dot = name.find('.');
        if (dot == std::string::npos) {
            scopes_.back()[name] = std::move(value);
            return;
        }
        const auto found = handle_number(lookup(name.substr(0, dot)), JinjaHandle::name_space);
        if (!found) { render_error("a namespace", name); }
        spaces_[*found][name.substr(dot + 1)] = std::move(value);
    }

    Flow loop(const JinjaNode& node) {
        std::vector<Value> items = elements_of(evaluate(node.expression));
        scopes_.push_back(Value::object());
        std::vector<Value> kept;
        bool completed = false;  // Jinja's `else` also follows rounds that all ended with continue or break
        for (Value& item : items) {
            bind(node, item);
            if (!node.filtered || is_true(evaluate(node.filter))) { kept.push_back(std::move(item)); }
        }
        for (std::size_t n = 0; n < kept.size(); ++n) {
            step();
            scopes_.back() = Value::object();
            bind(node, kept[n]);
            Value& state = scopes_.back()["loop"] = {{"index", n + 1},
                                                     {"index0", n},
                                                     {"first", n == 0},
                                                     {"last", n + 1 == kept.size()},
                                                     {"length", kept.size()},
                                                     {"revindex", kept.size() - n},
                                                     {"revindex0", kept.size() - n - 1}};
            if (n > 0) { state["previtem"] = charged(kept[n - 1]); }
            if (n + 1 < kept.size()) { state["nextitem"] = charged(kept[n + 1]); }
            const Flow flow = write(node.body);
            if (flow == Flow::stop_loop) { break; }
            completed = completed || flow == Flow::on;
        }
        scopes_.pop_back();
        return completed ? Flow::on : write(node.otherwise);
    }

    void bind(const JinjaNode& node, const Value& item) {
        if (node.names.size() == 1) {
            scopes_.back()[node.names[0]] = charged(item);
            return;
        }
        if (!item.is_array() || item.size() != node.names.size()) {
            render_error("elements of " + std::to_string(node.names.size()) + " parts", kind_of_value(item));
        }
        for (std::size_t n = 0; n < item.size(); ++n) { scopes_.back()[node.names[n]] = charged(item[n]); }
    }

    const Value* variable(const std::string& name) const {
        for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
            if (const auto found = scope->find(name); found != scope->end()) { return &*found; }
        }
        return nullptr;
    }
    Value lookup(const std::string& name) const {
        const Value* found = variable(name);
        return found == nullptr ? undefined() : *found;
    }

    /// Where a name, a field or an element lives, without a copy of what it is part of; null where it is made anew.
    const Value* place(const Expression& e) {
        if (e.kind == Kind::name) { return variable(e.text); }
        if (e.kind != Kind::attribute && e.kind != Kind::index) { return nullptr; }
        const Value key = e.kind == Kind::attribute ? Value(e.text) : evaluate(e.parts[1]);  // may move the scopes
        const Value* whole = place(e.parts[0]);
        if (whole == nullptr) { return nullptr; }
        if (const auto space = handle_number(*whole, JinjaHandle::name_space)) { whole = &spaces_[*space]; }
        if (whole->is_object() && key.is_string()) {
            const auto found = whole->find(key.get_ref<const std::string&>());
            return found == whole->end() ? nullptr : &*found;
        }
        const bool inside = whole->is_array() && key.is_number_integer() && key.get<std::int64_t>() >= 0 &&
                            key.get<std::int64_t>() < static_cast<std::int64_t>(whole->size());
        return inside ? &(*whole)[key.get<std::size_t>()] : nullptr;
    }

    /// The value where it lives, or `held`, which is made of it.
    const Value& seen(const Expression& e, Value& held) {
        if (const Value* found = place(e)) { return *found; }
        held = evaluate(e);
        return held;
    }

    Value evaluate(const Expression& e) {
        step();
        if (const Value* found = place(e)) { return charged(*found); }
        switch (e.kind) {
            case Kind::literal: return e.value;
            case Kind::name: {
                const auto function = std::find(std::begin(functions), std::end(functions), e.text);
                if (function == std::end(functions)) { return undefined(); }
                return handle_value(JinjaHandle::function, static_cast<std::size_t>(function - functions));
            }
            case Kind::attribute: return field(e);
            case Kind::index: return element(e);
            case Kind::slice: return sliced(e);
            case Kind::call: return called(e);
            case Kind::filter: return filtered(e);
            case Kind::unary: return unary(e);
            case Kind::binary: return binary(e);
            case Kind::choice: return evaluate(e.parts[is_true(evaluate(e.parts[0])) ? 1 : 2]);
            case Kind::test: {
                Value held;
                const Value value = e.parts.size() > 1 ? evaluate(e.parts[0]) : Value();
                const Arguments given = arguments_of(e);
                return apply_jinja_test(e.text, e.parts.size() > 1 ? value : seen(e.parts[0], held), given) !=
                       e.negated;
            }
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

    using Arguments = JinjaArguments;
    Arguments arguments_of(const Expression& e) {
        Arguments given;
        const std::size_t plain = e.parts.size() - e.keywords.size();
        for (std::size_t n = 1; n < e.parts.size(); ++n) {
            Value value = evaluate(e.parts[n]);
            if (n < plain) {
                given.plain.push_back(std::move(value));
            } else {
                given.named.emplace_back(e.keywords[n - plain], std::move(value));
            }
        }
        return given;
    }

    Value field(const Expression& e) {
        const Value value = evaluate(e.parts[0]);
        if (!is_defined(value)) { render_error("a variable that is defined", "one that is not, at ." + e.text); }
        return element_of(value, e.text);
    }

    Value element(const Expression& e) { return element_of(evaluate(e.parts[0]), evaluate(e.parts[1])); }

    Value sliced(const Expression& e) {
        const Value value = evaluate(e.parts[0]);
        if (!value.is_string() && !value.is_array()) { render_error("a list or text to slice", kind_of_value(value)); }
        const std::vector<Value> items = elements_of(value);
        const auto size = static_cast<std::int64_t>(items.size());
        const auto given = [&](std::size_t n, std::int64_t otherwise) {
            const Value bound = evaluate(e.parts[n]);
            if (bound.is_null()) { return otherwise; }
            if (!bound.is_number_integer()) { render_error("whole numbers in a slice", kind_of_value(bound)); }
            return bound.get<std::int64_t>();
        };
        const std::int64_t step = given(3, 1);
        if (step == 0) { render_error("a step other than 0", "0"); }
        const auto clipped = [&](std::int64_t n, std::int64_t low, std::int64_t high) {
            return std::clamp(n < 0 ? n + size : n, low, high);
        };
        const std::int64_t first = step > 0 ? clipped(given(1, 0), 0, size) : clipped(given(1, size - 1), -1, size - 1);
        const std::int64_t none = step > 0 ? size : -1 - size;  // a bound that is not given, past the end
        const std::int64_t last = step > 0 ? clipped(given(2, none), 0, size) : clipped(given(2, none), -1, size - 1);
        Value kept = Value::array();
        for (std::int64_t n = first; step > 0 ? n < last : n > last; n += step) {
            kept.push_back(items[static_cast<std::size_t>(n)]);
        }
        return value.is_string() ? apply_jinja_filter("join", kept, {}) : kept;
    }

    Value unary(const Expression& e) {
        const Value value = evaluate(e.parts[0]);
        if (e.text == "not") { return !is_true(value); }
        if (value.is_number_float()) { return -value.get<double>(); }
        if (!value.is_number_integer()) { render_error("a number", kind_of_value(value)); }
        return -value.get<std::int64_t>();
    }

    Value binary(const Expression& e) {
        Value left = evaluate(e.parts[0]);
        if (e.text == "and") { return is_true(left) ? evaluate(e.parts[1]) : left; }
        if (e.text == "or") { return is_true(left) ? left : evaluate(e.parts[1]); }
        if (e.text == "in") {
            Value held;
            return contains_value(seen(e.parts[1], held), left) != e.negated;
        }
        const Value right = evaluate(e.parts[1]);
        if (e.text == "~") { return bounded(text_of_value(left) + text_of_value(right)); }
        if (e.text == "==" || e.text == "!=") {
            const bool same = is_defined(left) && is_defined(right) ? apply_jinja_test("==", left, {{right}, {}})
                                                                    : is_defined(left) == is_defined(right);
            return same == (e.text == "==");
        }
        if (e.text == "<" || e.text == ">" || e.text == "<=" || e.text == ">=") {
            return apply_jinja_test(e.text, left, {{right}, {}});
        }
        if (e.text == "+" && left.is_string() && right.is_string()) {
            return bounded(left.get_ref<const std::string&>() + right.get_ref<const std::string&>());
        }
        if (e.text == "+" && left.is_array() && right.is_array()) {
            for (const Value& item : right) { left.push_back(item); }
            return left;
        }
        if (e.text == "%" && left.is_string()) {
            return formatted(left.get<std::string>(),
                             right.is_array() ? elements_of(right) : std::vector<Value>{right});
        }
        if (e.text == "*" && left.is_string() && right.is_number_integer()) {
            return repeated(left.get_ref<const std::string&>(), right.get<std::int64_t>());
        }
        return computed(e.text, left, right);
    }

    static std::string bounded(std::string text) {
        if (text.size() > rendered_limit) { render_error("less text", "more than 64 MB"); }
        return text;
    }
    static std::string repeated(const std::string& text, std::int64_t count) {
        if (count > 0 && text.size() > rendered_limit / static_cast<std::uint64_t>(count)) {
            render_error("less text", "more than 64 MB");
        }
        std::string result;
        for (std::int64_t n = 0; n < count && !text.empty(); ++n) { result += text; }
        return result;
    }

    static Value computed(const std::string& sign, const Value& left, const Value& right) {
        if (!left.is_number() || !right.is_number()) {
            render_error("two numbers or two texts for " + sign, kind_of_value(left) + " and " + kind_of_value(right));
        }
        if (sign == "/" || left.is_number_float() || right.is_number_float()) {
            const double a = left.get<double>(), b = right.get<double>();
            if (sign == "+") { return a + b; }
            if (sign == "-") { return a - b; }
            if (sign == "*") { return a * b; }
            if (sign == "**") { return std::pow(a, b); }
            if (b == 0) { render_error("a divisor", "0"); }
            return sign == "/" ? a / b : sign == "//" ? std::floor(a / b) : a - std::floor(a / b) * b;
        }
        constexpr std::int64_t most = std::int64_t{1} << 31;
        const std::int64_t a = left.get<std::int64_t>(), b = right.get<std::int64_t>();
        if (a > most || a < -most || b > most || b < -most) { render_error("numbers below 2^31", "larger ones"); }
        if (sign == "+") { return a + b; }
        if (sign == "-") { return a - b; }
        if (sign == "*") { return a * b; }
        if (sign == "**") {
            const double power = std::pow(static_cast<double>(a), static_cast<double>(b));
            if (b < 0 || std::fabs(power) > 9e15) { render_error("a power below 2^53", "another"); }
            return static_cast<std::int64_t>(power);
        }
        if (b == 0) { render_error("a divisor", "0"); }
        const std::int64_t remainder = (a % b + b) % b;  // of the divisor's sign, as in Python
        return sign == "%" ? remainder : (a - remainder) / b;
    }

    Value filtered(const Expression& e) {
        if (e.parts.size() == 1 && (e.text == "length" || e.text == "count")) {
            Value held;
            return apply_jinja_filter(e.text, seen(e.parts[0], held), {});
        }
        const Value value = evaluate(e.parts[0]);
        return charged(apply_jinja_filter(e.text, value, arguments_of(e)));
    }

    Value called(const Expression& e) {
        const Expression& function = e.parts[0];
        const Value callee = evaluate_callee(function);
        if (const auto macro = handle_number(callee, JinjaHandle::macro)) {
            return call_macro(*macros_[*macro], arguments_of(e));
        }
        if (function.kind == Kind::attribute) {
            const Value of = evaluate(function.parts[0]);
            const Arguments given = arguments_of(e);
            if (function.text == "cycle" && of.is_object() && of.contains("index0") && !given.plain.empty()) {
                return given.plain[of["index0"].get<std::size_t>() % given.plain.size()];
            }
            return charged(call_jinja_method(function.text, of, given));
        }
        if (function.kind == Kind::name && !is_defined(callee)) {
            return call_function(function.text, arguments_of(e));
        }
        render_error("something to call", kind_of_value(callee));
    }

    /// The macro that a name or a field holds; methods and functions are no values.
    Value evaluate_callee(const Expression& function) {
        const Value* found = place(function);
        return found == nullptr ? undefined() : *found;
    }

    /// A macro sees its arguments and what the template has set outside of loops.
    Value call_macro(const JinjaNode& macro, const Arguments& given) {
        if (++calls_ > call_limit) { render_error("at most 40 macros within each other", "more"); }
        if (given.plain.size() > macro.names.size()) {
            render_error("at most " + std::to_string(macro.names.size()) + " arguments of " + macro.text, "more");
        }
        Value scope = Value::object();
        for (std::size_t n = 0; n < given.plain.size(); ++n) { scope[macro.names[n]] = given.plain[n]; }
        for (const auto& [name, value] : given.named) {
            const bool known = std::find(macro.names.begin(), macro.names.end(), name) != macro.names.end();
            if (!known || scope.contains(name)) { render_error("arguments of the macro " + macro.text, name); }
            scope[name] = value;
        }
        std::vector<Value> caller;
        caller.assign(std::make_move_iterator(scopes_.begin() + 1), std::make_move_iterator(scopes_.end()));
        scopes_.resize(1);
        scopes_.push_back(std::move(scope));
        const std::size_t required = macro.names.size() - macro.defaults.size();
        for (std::size_t n = 0; n < macro.names.size(); ++n) {
            if (scopes_.back().contains(macro.names[n])) { continue; }
            // What is missing hides a variable of the same name outside.
            scopes_.back()[macro.names[n]] = n < required ? undefined() : evaluate(macro.defaults[n - required]);
        }
        std::string kept;
        kept.swap(out_);
        write(macro.body);
        kept.swap(out_);
        scopes_.resize(1);
        for (Value& one : caller) { scopes_.push_back(std::move(one)); }
        --calls_;
        return kept;
    }

    Value call_function(const std::string& name, const Arguments& given) {
        if (name == "raise_exception") {
            refuse("ChatTemplate::render", "messages", "what the template takes",
                   given.plain.empty() ? std::string("a refusal") : text_of_value(given.plain[0]));
        }
        if (name == "strftime_now") { return time_text(text_of_value(given.get(0, "format"))); }
        if (name == "range") { return numbers(given.plain); }
        if (name != "namespace" && name != "dict") { render_error("a function that heed knows", name); }
        Value made = given.plain.empty() ? Value::object() : given.plain[0];
        if (!made.is_object()) { render_error("a mapping for " + name, kind_of_value(made)); }
        for (const auto& [key, value] : given.named) { made[key] = value; }
        if (name == "dict") { return made; }
        spaces_.push_back(std::move(made));
        return handle_value(JinjaHandle::name_space, spaces_.size() - 1);
    }

    static Value numbers(const std::vector<Value>& arguments) {
        for (const Value& value : arguments) {
            if (!value.is_number_integer()) { render_error("whole numbers in range", kind_of_value(value)); }
        }
        if (arguments.empty() || arguments.size() > 3) {
            render_error("one to three numbers in range", "another count");
        }
        const std::int64_t first = arguments.size() > 1 ? arguments[0].get<std::int64_t>() : 0,
                           last = arguments[arguments.size() > 1 ? 1 : 0].get<std::int64_t>(),
                           step = arguments.size() > 2 ? arguments[2].get<std::int64_t>() : 1;
        constexpr std::int64_t most = 10000, far = std::int64_t{1} << 31;
        if (step == 0 || std::max({std::abs(first), std::abs(last), std::abs(step)}) > far ||
            (last - first) / step > most) {
            render_error("a range of at most 10000", "another");
        }
        Value list = Value::array();
        for (std::int64_t n = first; step > 0 ? n < last : n > last; n += step) { list.push_back(n); }
        return list;
    }

    std::vector<Value> scopes_;
    std::deque<Value> spaces_;
    std::vector<const JinjaNode*> macros_;
    std::string out_;
    std::int64_t steps_ = 0, copied_ = 0;
    int calls_ = 0;
};

}  // namespace

std::string render_jinja(const std::vector<JinjaNode>& nodes, JinjaValue variables) {
    return Renderer(std::move(variables)).run(nodes);
}

}  // namespace heed::text
