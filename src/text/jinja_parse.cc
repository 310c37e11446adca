#include <algorithm>
#include <cctype>
#include <utility>

#include "text/jinja.h"
#include "text/jinja_syntax.h"

namespace heed::text {
namespace {

constexpr std::size_t jinja_size = 1U << 20U;

/// {{ }}, {% %} and what lies between; comments are left out.
struct TemplatePiece {
    enum class Kind { text, output, statement } kind = Kind::text;
    std::string text;
};

/// Where "}}" or "%}" ends what begins at `at`: not in a string, nor while a bracket is open.
std::size_t find_close(std::string_view text, std::size_t at, std::string_view close) {
    int open = 0;
    for (; at < text.size(); ++at) {
        const char c = text[at];
        if (open == 0 && text.substr(at, 2) == close) { return at; }
        if (c == '"' || c == '\'') {
            for (++at; at < text.size() && text[at] != c; ++at) { at += text[at] == '\\' ? 1 : 0; }
        } else if (c == '{' || c == '[' || c == '(') {
            ++open;
        } else if (c == '}' || c == ']' || c == ')') {
            --open;
        }
    }
    return std::string_view::npos;
}

/// As Jinja reads a template: lines end with a line feed, and the last one of the file goes.
std::string with_plain_lines(std::string_view text) {
    std::string result;
    for (std::size_t at = 0; at < text.size(); ++at) {
        if (text[at] == '\r' && at + 1 < text.size() && text[at + 1] == '\n') { continue; }
        result += text[at] == '\r' ? '\n' : text[at];
    }
    if (!result.empty() && result.back() == '\n') { result.pop_back(); }
    return result;
}

constexpr std::string_view template_space = " \t\r\n\f\v";

class TemplateCutter {
public:
    explicit TemplateCutter(std::string_view text) : text_(text) {}

    std::vector<TemplatePiece> all() {
        while (true) {
            const std::size_t open = next_open();
            std::string plain = plain_until(open);
            if (open == text_.size()) {
                pieces_.push_back({TemplatePiece::Kind::text, std::move(plain)});
                return std::move(pieces_);
            }
            tag(open, std::move(plain));
        }
    }

private:
    std::size_t next_open() const {
        std::size_t open = at_;
        while ((open = text_.find('{', open)) != std::string_view::npos && open + 1 < text_.size() &&
               text_[open + 1] != '{' && text_[open + 1] != '%' && text_[open + 1] != '#') {
            ++open;
        }
        return open == std::string_view::npos || open + 1 >= text_.size() ? text_.size() : open;
    }

    std::string plain_until(std::size_t open) {
        std::string plain(text_.substr(at_, open - at_));
        if (after_block_ && !plain.empty() && plain[0] == '\n') { plain.erase(0, 1); }  // trim_blocks
        if (strip_next_) { plain.erase(0, std::min(plain.find_first_not_of(template_space), plain.size())); }
        strip_next_ = after_block_ = false;
        return plain;
    }

    void tag(std::size_t open, std::string plain) {
        const char kind = text_[open + 1];
        const std::string close = kind == '{' ? "}}" : kind == '%' ? "%}" : "#}";
        const std::size_t end = kind == '#' ? text_.find(close, open + 2) : find_close(text_, open + 2, close);
        if (end == std::string_view::npos) { jinja_error("'" + close + "'", text_.substr(open, 40)); }
        std::string_view inside = text_.substr(open + 2, end - open - 2);
        const bool dash = !inside.empty() && inside.front() == '-', plus = !inside.empty() && inside.front() == '+';
        if (dash || plus) { inside.remove_prefix(1); }
        const bool dash_end = !inside.empty() && inside.back() == '-',
                   plus_end = kind != '{' && !inside.empty() && inside.back() == '+';
        if (dash_end || plus_end) { inside.remove_suffix(1); }
        if (dash) {
            plain.erase(plain.find_last_not_of(template_space) + 1);
        } else if (kind != '{' && !plus) {  // lstrip_blocks: a block that is first on its line
            std::size_t begin = open;
            while (begin > 0 && (text_[begin - 1] == ' ' || text_[begin - 1] == '\t')) { --begin; }
            const bool first = begin == 0 || text_[begin - 1] == '\n';
            if (first) { plain.erase(plain.size() - std::min(plain.size(), open - begin)); }
        }
        pieces_.push_back({TemplatePiece::Kind::text, std::move(plain)});
        strip_next_ = dash_end;
        after_block_ = kind != '{' && !dash_end && !plus_end;
        at_ = end + 2;
        if (kind == '#') { return; }
        pieces_.push_back(
            {kind == '{' ? TemplatePiece::Kind::output : TemplatePiece::Kind::statement, std::string(inside)});
    }

    std::string_view text_;
    std::vector<TemplatePiece> pieces_;
    std::size_t at_ = 0;
    bool strip_next_ = false, after_block_ = false;
};

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
            parse_jinja_loop_head(rest, node);
            ++at_;
            ++loops_;
            node.body = until({"endfor", "else"});
            --loops_;
            std::string behind;
            if (at_ < pieces_.size() && first_word(pieces_[at_].text, behind) == "else") {
                ++at_;
                node.otherwise = until({"endfor"});
            }
            if (at_ == pieces_.size()) { jinja_error("endfor", "the end"); }
        } else if (word == "set") {
            node = set(rest);
        } else if (word == "macro") {
            node.kind = JinjaNode::Kind::macro;
            parse_jinja_macro_head(rest, node);
            ++at_;
            const int loops = std::exchange(loops_, 0);
            node.body = until({"endmacro"});
            loops_ = loops;
            if (at_ == pieces_.size()) { jinja_error("endmacro", "the end"); }
        } else if (word == "break" || word == "continue") {
            if (loops_ == 0) { jinja_error("a loop around " + word, "none"); }
            node.kind = word == "break" ? JinjaNode::Kind::stop_loop : JinjaNode::Kind::next_round;
        } else if (word == "generation" || word == "endgeneration") {
            // marks the assistant's part for training; nothing to write
        } else {
            jinja_error("if, for, set, macro, break, continue or generation", word);
        }
        return node;
    }

    /// "x = 1", "ns.x = 1", or "x" with the text up to endset.
    JinjaNode set(const std::string& rest) {
        JinjaNode node;
        node.kind = JinjaNode::Kind::set;
        const std::size_t equals = rest.find('=');
        std::string behind;
        node.text = first_word(rest.substr(0, equals), behind);
        if (!behind.empty() && behind[0] == '.') {
            std::string none;
            node.text += "." + first_word(behind.substr(1), none);
            behind = none;
        }
        if (node.text.empty() || behind.find_first_not_of(template_space) != std::string::npos) {
            jinja_error("set NAME = VALUE", rest);
        }
        if (equals != std::string::npos) {
            node.expression = parse_jinja_expression(rest.substr(equals + 1));
            return node;
        }
        node.kind = JinjaNode::Kind::set_text;
        ++at_;
        node.body = until({"endset"});
        if (at_ == pieces_.size()) { jinja_error("endset", "the end"); }
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
    int depth_ = 0, loops_ = 0;
};

}  // namespace

std::vector<JinjaNode> parse_jinja(std::string_view text) {
    if (text.size() > jinja_size) { jinja_error("at most 1048576 bytes", std::to_string(text.size())); }
    const std::string lines = with_plain_lines(text);
    return TemplateParser(TemplateCutter(lines).all()).all();
}

}  // namespace heed::text
