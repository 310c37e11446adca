#include <heed/error.h>

#include <algorithm>
#include <cctype>

#include "io/file.h"
#include "text/jinja.h"

namespace heed::text {
namespace {

using Expression = JinjaExpression;
using Kind = Expression::Kind;

constexpr int jinja_depth = 48;
constexpr std::size_t jinja_size = 1U << 20U;

[[noreturn]] void jinja_error(const std::string& expected, std::string_view got) {
    throw Error("[ChatTemplate] template: expected " + expected + ", got " + in_quotes(got));
}

struct Token {
    enum class Kind { name, number, string, sign, end } kind = Kind::end;
    std::string text;
};

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
                const char escaped = text[++at];
                token.text += escaped == 'n' ? '\n' : escaped == 't' ? '\t' : escaped == 'r' ? '\r' : escaped;
            }
            if (at == text.size()) { jinja_error("a string that ends", text); }
            ++at;
            tokens.push_back(std::move(token));
        } else if (is_name(c)) {
            const std::size_t begin = at;
            while (at < text.size() && is_name(text[at])) { ++at; }
            const bool number = std::isdigit(static_cast<unsigned char>(c)) != 0;
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

/// Precedence climbs: choice, or, and, not, comparison, ~ and +, * / %, filters, what follows a value.
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
        if (take(",")) { names.push_back(name()); }
        if (!take_name("in")) { jinja_error("in", whole_); }
        return names;
    }
    Expression loop_list() { return either(); }
    bool has_condition() { return take_name("if"); }

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
            other.value = "";
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
            } else if (take_name("is")) {
                negated = take_name("not");
                Expression test = made(Kind::test, name(), {std::move(left)});
                test.negated = negated;
                left = std::move(test);
                continue;
            } else {
                return left;
            }
            left = made(Kind::binary, sign, {std::move(left), summed()});
            left.negated = negated;
        }
    }
    Expression summed() {
        Expression left = multiplied();
        while (is_sign("+") || is_sign("-") || is_sign("~")) {
            const std::string sign = tokens_[at_++].text;
            left = made(Kind::binary, sign, {std::move(left), multiplied()});
        }
        return left;
    }
    Expression multiplied() {
        Expression left = filtered();
        while (is_sign("*") || is_sign("%") || is_sign("//")) {
            const std::string sign = tokens_[at_++].text;
            left = made(Kind::binary, sign, {std::move(left), filtered()});
        }
        return left;
    }
    Expression filtered() {
        Expression value = followed();
        while (take("|")) {
            Expression filter = made(Kind::filter, name(), {std::move(value)});
            if (take("(")) { arguments(filter); }
            value = followed(std::move(filter));
        }
        return value;
    }
    Expression followed() { return followed(primary()); }
    Expression followed(Expression value) {
        while (true) {
            if (take(".")) {
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
            if (digits.size() > 9 || digits.find_first_not_of("0123456789") != std::string::npos) {
                jinja_error("a whole number", digits);
            }
            literal.value = std::stol(digits);
            return literal;
        }
        if (take("-")) { return made(Kind::unary, "-", {primary()}); }
        if (take("(")) {
            Expression inner = choice();
            expect(")");
            return inner;
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

/// {{ }}, {% %} and what lies between; comments are left out.
struct TemplatePiece {
    enum class Kind { text, output, statement } kind = Kind::text;
    std::string text;
};

std::vector<TemplatePiece> pieces_of(std::string_view text) {
    std::vector<TemplatePiece> pieces;
    const auto strip_right = [](std::string& s) { s.erase(s.find_last_not_of(" \t\r\n") + 1); };
    bool strip_next = false, after_block = false;
    for (std::size_t at = 0; at <= text.size();) {
        std::size_t open = at;
        while ((open = text.find('{', open)) != std::string_view::npos && open + 1 < text.size() &&
               text[open + 1] != '{' && text[open + 1] != '%' && text[open + 1] != '#') {
            ++open;
        }
        if (open == std::string_view::npos || open + 1 >= text.size()) { open = text.size(); }
        std::string plain(text.substr(at, open - at));
        if (after_block && !plain.empty() && plain[0] == '\n') { plain.erase(0, 1); }  // trim_blocks
        if (strip_next) { plain.erase(0, std::min(plain.find_first_not_of(" \t\r\n"), plain.size())); }
        strip_next = after_block = false;
        if (open == text.size()) {
            pieces.push_back({TemplatePiece::Kind::text, std::move(plain)});
            break;
        }
        const char kind = text[open + 1];
        const std::string close = kind == '{' ? "}}" : kind == '%' ? "%}" : "#}";
        const std::size_t end = text.find(close, open + 2);
        if (end == std::string_view::npos) { jinja_error("'" + close + "'", text.substr(open, 40)); }
        std::string_view inside = text.substr(open + 2, end - open - 2);
        const bool dash = !inside.empty() && inside.front() == '-', plus = !inside.empty() && inside.front() == '+';
        if (dash || plus) { inside.remove_prefix(1); }
        const bool dash_end = !inside.empty() && inside.back() == '-';
        if (dash_end) { inside.remove_suffix(1); }
        if (dash) {
            strip_right(plain);
        } else if (kind != '{' && !plus) {  // lstrip_blocks: a block that is first on its line
            std::size_t begin = open;
            while (begin > 0 && (text[begin - 1] == ' ' || text[begin - 1] == '\t')) { --begin; }
            const bool first = begin == 0 || text[begin - 1] == '\n';
            if (first) { plain.erase(plain.size() - std::min(plain.size(), open - begin)); }
        }
        pieces.push_back({TemplatePiece::Kind::text, std::move(plain)});
        strip_next = dash_end;
        after_block = kind != '{' && !dash_end;
        if (kind != '#') {
            pieces.push_back(
                {kind == '{' ? TemplatePiece::Kind::output : TemplatePiece::Kind::statement, std::string(inside)});
        }
        at = end + 2;
    }
    return pieces;
}

std::string first_word(const std::string& text, std::string& rest) {
    const std::size_t begin = text.find_first_not_of(" \t\r\n");
    if (begin == std::string::npos) { return {}; }
    std::size_t end = begin;
    while (end < text.size() && (std::isalnum(static_cast<unsigned char>(text[end])) != 0 || text[end] == '_')) {
        ++end;
    }
    rest = text.substr(end);
    return text.substr(begin, end - begin);
}

class TemplateParser {
public:
    explicit TemplateParser(std::vector<TemplatePiece> pieces) : pieces_(std::move(pieces)) {}

    std::vector<JinjaNode> all() {
        std::vector<JinjaNode> nodes = until({});
        if (at_ < pieces_.size()) { jinja_error("no end without a beginning", pieces_[at_].text); }
        return nodes;
    }

private:
    /// Up to a statement that begins with one of `words`, which is left.
    std::vector<JinjaNode> until(const std::vector<std::string>& words) {
        if (++depth_ > jinja_depth) { jinja_error("at most 48 levels", "more"); }
        std::vector<JinjaNode> nodes;
        for (; at_ < pieces_.size(); ++at_) {
            const TemplatePiece& piece = pieces_[at_];
            JinjaNode node;
            if (piece.kind == TemplatePiece::Kind::text) {
                node.text = piece.text;
                if (!node.text.empty()) { nodes.push_back(std::move(node)); }
                continue;
            }
            if (piece.kind == TemplatePiece::Kind::output) {
                node.kind = JinjaNode::Kind::output;
                node.expression = parse_jinja_expression(piece.text);
                nodes.push_back(std::move(node));
                continue;
            }
            std::string rest;
            const std::string word = first_word(piece.text, rest);
            if (std::find(words.begin(), words.end(), word) != words.end()) { break; }
            nodes.push_back(statement(word, rest));
        }
        --depth_;
        return nodes;
    }

    JinjaNode statement(const std::string& word, const std::string& rest) {
        JinjaNode node;
        if (word == "if") {
            node = branch(rest);
        } else if (word == "for") {
            node.kind = JinjaNode::Kind::loop;
            ExpressionParser parser(rest);
            node.names = parser.loop_names();
            node.expression = parser.loop_list();
            node.filtered = parser.has_condition();
            if (node.filtered) { node.filter = parser.all(); }
            ++at_;
            node.body = until({"endfor", "else"});
            std::string behind;
            if (at_ < pieces_.size() && first_word(pieces_[at_].text, behind) == "else") {
                ++at_;
                node.otherwise = until({"endfor"});
            }
            if (at_ == pieces_.size()) { jinja_error("endfor", "the end"); }
        } else if (word == "set") {
            node.kind = JinjaNode::Kind::set;
            const std::size_t equals = rest.find('=');
            if (equals == std::string::npos) { jinja_error("set NAME = VALUE", rest); }
            std::string behind;
            node.text = first_word(rest.substr(0, equals), behind);
            if (!behind.empty() && behind[0] == '.') {
                std::string none;
                node.text += "." + first_word(behind.substr(1), none);
                behind = none;
            }
            if (behind.find_first_not_of(" \t\r\n") != std::string::npos) { jinja_error("set NAME = VALUE", rest); }
            node.expression = parse_jinja_expression(rest.substr(equals + 1));
        } else if (word == "generation" || word == "endgeneration") {
            // marks the assistant's part for training; nothing to write
        } else {
            jinja_error("if, for or set", word);
        }
        return node;
    }

    JinjaNode branch(const std::string& condition) {
        JinjaNode node;
        node.kind = JinjaNode::Kind::branch;
        node.expression = parse_jinja_expression(condition);
        ++at_;
        node.body = until({"elif", "else", "endif"});
        if (at_ == pieces_.size()) { jinja_error("endif", "the end"); }
        std::string rest;
        const std::string word = first_word(pieces_[at_].text, rest);
        if (word == "elif") {
            if (++depth_ > jinja_depth) { jinja_error("at most 48 levels", "more"); }
            node.otherwise.push_back(branch(rest));
            --depth_;
        } else if (word == "else") {
            ++at_;
            node.otherwise = until({"endif"});
            if (at_ == pieces_.size()) { jinja_error("endif", "the end"); }
        }
        return node;
    }

    std::vector<TemplatePiece> pieces_;
    std::size_t at_ = 0;
    int depth_ = 0;
};

}  // namespace

JinjaExpression parse_jinja_expression(std::string_view text) { return ExpressionParser(text).all(); }

std::vector<JinjaNode> parse_jinja(std::string_view text) {
    if (text.size() > jinja_size) { jinja_error("at most 1048576 bytes", std::to_string(text.size())); }
    return TemplateParser(pieces_of(text)).all();
}

}  // namespace heed::text
