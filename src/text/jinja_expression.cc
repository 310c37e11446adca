#include <heed/error.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "base/refuse.h"
#include "io/file.h"
#include "text/jinja_syntax.h"
#include "text/jinja_values.h"
#include "text/utf8.h"

namespace heed::text {

void jinja_error(const std::string& expected, std::string_view got) {
    refuse("ChatTemplate", "template", expected, in_quotes(got));
}

namespace {

using Expression = JinjaExpression;
using Kind = Expression::Kind;

struct Token {
    enum class Kind { name, number, string, sign, end } kind = Kind::end;
    std::string text;
};

/// What follows a backslash, as Python reads it; `at` is left on its last character.
void take_escape(std::string_view text, std::size_t& at, std::string& to) {
    static constexpr std::string_view letters = "ntrabfv0\n", meant{"\n\t\r\a\b\f\v\0", 8};
    const char escaped = text[at];
    const std::size_t digits = escaped == 'x' ? 2 : escaped == 'u' ? 4 : escaped == 'U' ? 8 : 0;
    if (digits > 0) {
        char32_t code = 0;
        for (std::size_t n = 1; n <= digits; ++n) {
            const char digit = at + n < text.size() ? text[at + n] : '?';
            if (std::isxdigit(static_cast<unsigned char>(digit)) == 0) { jinja_error("hexadecimal digits", text); }
            code = code * 16 + static_cast<char32_t>(std::stoi(std::string(1, digit), nullptr, 16));
        }
        if (code >= stray || (code >= 0xD800 && code < 0xE000)) { jinja_error("a character of Unicode", text); }
        append(to, code);
        at += digits;
        return;
    }
    const std::size_t known = letters.find(escaped);
    if (escaped == '\n') { return; }  // a line that goes on
    if (known != std::string_view::npos) {
        to += meant[known];
    } else if (escaped == '\\' || escaped == '\'' || escaped == '"') {
        to += escaped;
    } else {
        to += '\\';
        to += escaped;
    }
}

std::vector<Token> tokens_of(std::string_view text) {
    static constexpr std::string_view two[] = {"==", "!=", "<=", ">=", "//", "**"};
    std::vector<Token> tokens;
    for (std::size_t at = 0; at < text.size();) {
        const char c = text[at];
        const auto is_name = [](char x) { return std::isalnum(static_cast<unsigned char>(x)) != 0 || x == '_'; };
        if (std::isspace(static_cast<unsigned char>(c)) != 0) {
            ++at;
        } else if (c == '"' || c == '\'') {
            Token token{Token::Kind::string, {}};
            for (++at; at < text.size() && text[at] != c; ++at) {
                if (text[at] != '\\' || at + 1 == text.size()) {
                    token.text += text[at];
                    continue;
                }
                take_escape(text, ++at, token.text);
            }
            if (at == text.size()) { jinja_error("a string that ends", text); }
            ++at;
            tokens.push_back(std::move(token));
        } else if (is_name(c)) {
            const std::size_t begin = at;
            while (at < text.size() && is_name(text[at])) { ++at; }
            const bool number = std::isdigit(static_cast<unsigned char>(c)) != 0;
            const bool point = number && at + 1 < text.size() && text[at] == '.' &&
                               std::isdigit(static_cast<unsigned char>(text[at + 1])) != 0;
            if (point) {
                for (++at; at < text.size() && is_name(text[at]);) { ++at; }
            }
            tokens.push_back(
                {number ? Token::Kind::number : Token::Kind::name, std::string(text.substr(begin, at - begin))});
        } else {
            const std::string_view pair = text.substr(at, 2);
            const bool is_two = std::find(std::begin(two), std::end(two), pair) != std::end(two);
            tokens.push_back({Token::Kind::sign, std::string(text.substr(at, is_two ? 2 : 1))});
            at += is_two ? 2 : 1;
        }
    }
    tokens.push_back({});
    return tokens;
}

/// Precedence climbs: choice, or, and, not, comparison, + and -, ~, * / // %, **, filters and tests, what follows a
/// value.
class ExpressionParser {
public:
    explicit ExpressionParser(std::string_view text) : whole_(text), tokens_(tokens_of(text)) {}

    Expression all() {
        Expression result = choice();
        if (now().kind != Token::Kind::end) { jinja_error("an operator that heed knows", now().text); }
        return result;
    }
    /// "x in list if condition": the loop's own parts.
    std::vector<std::string> loop_names() {
        std::vector<std::string> names{name()};
        while (take(",")) { names.push_back(name()); }
        if (!take_name("in")) { jinja_error("in", whole_); }
        return names;
    }
    Expression loop_list() { return either(); }
    bool has_condition() { return take_name("if"); }
    void loop_end() {
        if (now().kind != Token::Kind::end) { jinja_error("the end of the loop's line", now().text); }
    }
    /// "name(a, b=1)".
    void macro_head(JinjaNode& node) {
        node.text = name();
        expect("(");
        while (!take(")")) {
            node.names.push_back(name());
            if (take("=")) {
                node.defaults.push_back(choice());
            } else if (!node.defaults.empty()) {
                jinja_error("a default for every parameter behind the first that has one", whole_);
            }
            if (!is_sign(")")) { expect(","); }
        }
        loop_end();
    }

private:
    const Token& now() const { return tokens_[at_]; }
    bool is_sign(std::string_view sign) const { return now().kind == Token::Kind::sign && now().text == sign; }
    bool is_word(std::string_view word) const { return now().kind == Token::Kind::name && now().text == word; }
    bool take(std::string_view sign) {
        if (!is_sign(sign)) { return false; }
        ++at_;
        return true;
    }
    bool take_name(std::string_view word) {
        if (!is_word(word)) { return false; }
        ++at_;
        return true;
    }
    void expect(std::string_view sign) {
        if (!take(sign)) { jinja_error("'" + std::string(sign) + "'", whole_); }
    }
    std::string name() {
        if (now().kind != Token::Kind::name) { jinja_error("a name", whole_); }
        return tokens_[at_++].text;
    }

    static Expression made(Kind kind, std::string text, std::vector<Expression> parts) {
        Expression result;
        result.kind = kind;
        result.text = std::move(text);
        result.parts = std::move(parts);
        return result;
    }

    Expression choice() {
        if (++depth_ > jinja_depth) { jinja_error("at most 48 levels", whole_); }
        Expression result = either();
        if (take_name("if")) {
            Expression condition = either();
            Expression other = made(Kind::literal, {}, {});
            other.value = undefined();
            if (take_name("else")) { other = choice(); }
            result = made(Kind::choice, {}, {std::move(condition), std::move(result), std::move(other)});
        }
        --depth_;
        return result;
    }
    Expression either() {
        Expression left = both();
        while (take_name("or")) { left = made(Kind::binary, "or", {std::move(left), both()}); }
        return left;
    }
    Expression both() {
        Expression left = inverted();
        while (take_name("and")) { left = made(Kind::binary, "and", {std::move(left), inverted()}); }
        return left;
    }
    Expression inverted() {
        if (take_name("not")) {
            if (++depth_ > jinja_depth) { jinja_error("at most 48 levels", whole_); }
            Expression result = made(Kind::unary, "not", {inverted()});
            --depth_;
            return result;
        }
        return compared();
    }
    Expression compared() {
        Expression left = summed();
        while (true) {
            bool negated = false;
            std::string sign;
            if (now().kind == Token::Kind::sign &&
                (is_sign("==") || is_sign("!=") || is_sign("<") || is_sign(">") || is_sign("<=") || is_sign(">="))) {
                sign = tokens_[at_++].text;
            } else if (is_word("in")) {
                ++at_;
                sign = "in";
            } else if (is_word("not") && tokens_[at_ + 1].text == "in") {
                at_ += 2;
                sign = "in";
                negated = true;
            } else {
                return left;
            }
            left = made(Kind::binary, sign, {std::move(left), summed()});
            left.negated = negated;
        }
    }
    /// What stands behind `is`: a name, and an argument in parentheses or as it is.
    Expression test(Expression value, bool negated) {
        Expression test = made(Kind::test, name(), {std::move(value)});
        if (!is_jinja_test(test.text)) { jinja_error("a test that heed knows", test.text); }
        test.negated = negated;
        const bool literal = now().kind == Token::Kind::string || now().kind == Token::Kind::number || is_sign("[");
        const bool word = now().kind == Token::Kind::name && !is_word("and") && !is_word("or") && !is_word("else") &&
                          !is_word("if") && !is_word("is") && !is_word("in") && !is_word("not");
        if (take("(")) {
            arguments(test);
        } else if (literal || word) {
            test.parts.push_back(followed());
        }
        return test;
    }
    Expression summed() {
        Expression left = written_on();
        while (is_sign("+") || is_sign("-")) {
            const std::string sign = tokens_[at_++].text;
            left = made(Kind::binary, sign, {std::move(left), written_on()});
        }
        return left;
    }
    Expression written_on() {
        Expression left = multiplied();
        while (take("~")) { left = made(Kind::binary, "~", {std::move(left), multiplied()}); }
        return left;
    }
    Expression multiplied() {
        Expression left = raised();
        while (is_sign("*") || is_sign("/") || is_sign("%") || is_sign("//")) {
            const std::string sign = tokens_[at_++].text;
            left = made(Kind::binary, sign, {std::move(left), raised()});
        }
        return left;
    }
    Expression raised() {
        Expression left = filtered();
        while (take("**")) { left = made(Kind::binary, "**", {std::move(left), filtered()}); }
        return left;
    }
    /// Filters and tests stand closer than any operator: `a + b is string` asks about b.
    Expression filtered() {
        Expression value = followed();
        while (true) {
            if (take_name("is")) {
                const bool negated = take_name("not");
                value = test(std::move(value), negated);
                continue;
            }
            if (!take("|")) { return value; }
            Expression filter = made(Kind::filter, name(), {std::move(value)});
            if (!is_jinja_filter(filter.text)) { jinja_error("a filter that heed knows", filter.text); }
            if (take("(")) { arguments(filter); }
            value = followed(std::move(filter));
        }
    }
    Expression followed() { return followed(primary()); }
    Expression followed(Expression value) {
        while (true) {
            if (take(".")) {
                if (now().kind == Token::Kind::number) {
                    Expression place = bare();
                    value = made(Kind::index, {}, {std::move(value), std::move(place)});
                    continue;
                }
                value = made(Kind::attribute, name(), {std::move(value)});
            } else if (take("[")) {
                value = bracketed(std::move(value));
            } else if (take("(")) {
                value = made(Kind::call, {}, {std::move(value)});
                arguments(value);
            } else {
                return value;
            }
        }
    }
    Expression bracketed(Expression value) {
        const auto none = [] {
            Expression nothing;
            nothing.value = nullptr;
            return nothing;
        };
        Expression first = is_sign(":") ? none() : choice();
        if (!take(":")) {
            expect("]");
            return made(Kind::index, {}, {std::move(value), std::move(first)});
        }
        Expression last = is_sign("]") || is_sign(":") ? none() : choice();
        Expression step = none();
        if (take(":") && !is_sign("]")) { step = choice(); }
        expect("]");
        return made(Kind::slice, {}, {std::move(value), std::move(first), std::move(last), std::move(step)});
    }
    void arguments(Expression& call) {
        while (!take(")")) {
            if (now().kind == Token::Kind::name && tokens_[at_ + 1].text == "=" &&
                tokens_[at_ + 1].kind == Token::Kind::sign) {
                call.keywords.push_back(name());
                ++at_;
            } else if (!call.keywords.empty()) {
                jinja_error("named arguments behind named ones", whole_);
            }
            call.parts.push_back(choice());
            if (!is_sign(")")) { expect(","); }
        }
    }
    Expression primary() {
        if (++depth_ > jinja_depth) { jinja_error("at most 48 levels", whole_); }
        Expression result = bare();
        --depth_;
        return result;
    }
    Expression bare() {
        Expression literal;
        if (now().kind == Token::Kind::string) {
            std::string text;
            while (now().kind == Token::Kind::string) { text += tokens_[at_++].text; }
            literal.value = text;
            return literal;
        }
        if (now().kind == Token::Kind::number) {
            const std::string& digits = tokens_[at_++].text;
            if (digits.size() > 15 || digits.find_first_not_of("0123456789.") != std::string::npos) {
                jinja_error("a number of at most 15 digits", digits);
            }
            literal.value =
                digits.find('.') == std::string::npos ? JinjaValue(std::stol(digits)) : JinjaValue(std::stod(digits));
            return literal;
        }
        if (take("-")) { return made(Kind::unary, "-", {primary()}); }
        if (take("(")) {
            Expression list = made(Kind::list, {}, {});
            if (take(")")) { return list; }
            Expression inner = choice();
            if (take(")")) { return inner; }
            list.parts.push_back(std::move(inner));  // a tuple, which is a list here
            while (!take(")")) {
                expect(",");
                if (!is_sign(")")) { list.parts.push_back(choice()); }
            }
            return list;
        }
        if (take("[")) {
            Expression list = made(Kind::list, {}, {});
            while (!take("]")) {
                list.parts.push_back(choice());
                if (!is_sign("]")) { expect(","); }
            }
            return list;
        }
        if (take("{")) {
            Expression object = made(Kind::object, {}, {});
            while (!take("}")) {
                object.parts.push_back(choice());
                expect(":");
                object.parts.push_back(choice());
                if (!is_sign("}")) { expect(","); }
            }
            return object;
        }
        const std::string word = name();
        if (word == "true" || word == "True" || word == "false" || word == "False") {
            literal.value = word == "true" || word == "True";
            return literal;
        }
        if (word == "none" || word == "None") { return literal; }
        return made(Kind::name, word, {});
    }

    std::string_view whole_;
    std::vector<Token> tokens_;
    std::size_t at_ = 0;
    int depth_ = 0;
};

}  // namespace

JinjaExpression parse_jinja_expression(std::string_view text) { return ExpressionParser(text).all(); }

void parse_jinja_loop_head(std::string_view text, JinjaNode& node) {
    ExpressionParser parser(text);
    node.names = parser.loop_names();
    node.expression = parser.loop_list();
    node.filtered = parser.has_condition();
    if (node.filtered) { node.filter = parser.all(); }
    parser.loop_end();
}

void parse_jinja_macro_head(std::string_view text, JinjaNode& node) { ExpressionParser(text).macro_head(node); }

}  // namespace heed::text
