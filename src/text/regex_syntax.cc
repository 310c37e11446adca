#include "text/regex_syntax.h"

#include <heed/error.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <string>
#include <utility>

#include "base/refuse.h"
#include "io/file.h"

namespace heed::text {
namespace {

using Item = CharacterSet::Item;
using NodeKind = RegexNode::Kind;

constexpr int depth_limit = 64;
constexpr std::uint32_t count_limit = 1000;
constexpr std::size_t pattern_limit = 1U << 16U;

Item range_item(char32_t first, char32_t last) { return {.kind = Item::Kind::range, .first = first, .last = last}; }
Item categories_item(Categories set, bool negated) {
    return {.kind = Item::Kind::categories, .negated = negated, .categories = set};
}

/// The classes that POSIX names and Oniguruma knows, in [[:name:]] and in \\p{name}. Those that need more than the
/// categories (letters, cases) are not among them.
std::optional<std::vector<Item>> posix_items(std::string name) {
    for (char& c : name) { c = static_cast<char>(std::tolower(static_cast<unsigned char>(c))); }
    constexpr Categories unseen = bit(Category::Cc) | bit(Category::Cn) | bit(Category::Cs);
    if (name == "space") { return {{{.kind = Item::Kind::space}}}; }
    if (name == "word") { return {{{.kind = Item::Kind::word}}}; }
    if (name == "digit") { return {{categories_item(bit(Category::Nd), false)}}; }
    if (name == "cntrl") { return {{categories_item(bit(Category::Cc), false)}}; }
    if (name == "blank") { return {{categories_item(bit(Category::Zs), false), range_item(U'\t', U'\t')}}; }
    if (name == "xdigit") { return {{range_item(U'0', U'9'), range_item(U'a', U'f'), range_item(U'A', U'F')}}; }
    if (name == "ascii") { return {{range_item(0, 0x7F)}}; }
    if (name == "any") { return {{range_item(0, stray - 1)}}; }
    if (name == "graph" || name == "print") {
        // What is neither unseen nor white space; printing adds the spaces.
        std::vector<Item> items = {
            categories_item(~(unseen | bit(Category::Zs) | bit(Category::Zl) | bit(Category::Zp)), false)};
        if (name == "print") { items.push_back(categories_item(bit(Category::Zs), false)); }
        return items;
    }
    return std::nullopt;
}

class RegexParser {
public:
    explicit RegexParser(std::string_view pattern) : text_(pattern) {}

    RegexNode whole() {
        if (text_.size() > pattern_limit) { fail("at most 65536 bytes", std::to_string(text_.size())); }
        RegexNode node = choice();
        if (!at_end()) { fail("the end or '|'", "')'"); }
        return node;
    }

private:
    [[noreturn]] void fail(const std::string& expected, const std::string& got) const {
        refuse("Tokenizer", "pattern", expected + " at byte " + std::to_string(at_) + " of " + in_quotes(text_), got);
    }

    bool at_end() const { return at_ == text_.size(); }
    bool ahead(std::string_view what) const { return text_.substr(at_, what.size()) == what; }
    bool take(std::string_view what) {
        if (!ahead(what)) { return false; }
        at_ += what.size();
        return true;
    }
    char32_t character() {
        if (at_end()) { fail("a character", "the end"); }
        const Character next = character_at(text_, at_);
        at_ += static_cast<std::size_t>(next.size);
        return next.code;
    }

    RegexNode choice() {
        if (++depth_ > depth_limit) { fail("at most 64 levels", "more"); }
        const bool fold = fold_, any_line = any_line_;
        RegexNode node;
        node.kind = NodeKind::choice;
        do { node.parts.push_back(sequence()); } while (take("|"));
        fold_ = fold;
        any_line_ = any_line;
        --depth_;
        if (node.parts.size() > 1) { return node; }
        RegexNode only = std::move(node.parts.front());  // not by assignment from its own part
        return only;
    }

    RegexNode sequence() {
        RegexNode node;
        node.kind = NodeKind::sequence;
        while (!at_end() && !ahead("|") && !ahead(")")) {
            // (?i) holds to the end of the group that it is in
            if (take("(?i)")) {
                fold_ = true;
                continue;
            }
            if (take("(?-i)")) {
                fold_ = false;
                continue;
            }
            if (take("(?m)")) {
                any_line_ = true;
                continue;
            }
            node.parts.push_back(quantified(atom()));
        }
        return node;
    }

    RegexNode repeated(RegexNode body, std::uint32_t min, std::uint32_t max, RegexNode::Greed greed) {
        RegexNode node;
        node.kind = NodeKind::repeat;
        node.min = min;
        node.max = max;
        node.greed = greed;
        node.parts.push_back(std::move(body));
        return node;
    }

    RegexNode quantified(RegexNode node) {
        for (int count = 0;; ++count) {
            if (count > depth_limit) { fail("at most 64 quantifiers in a row", "more"); }
            std::uint32_t min = 0, max = RegexNode::unlimited;
            const bool counted = ahead("{") && is_count();
            if (counted) {
                take_count(min, max);
            } else if (take("?")) {
                max = 1;
            } else if (take("+")) {
                min = 1;
            } else if (!take("*")) {
                return node;
            }
            if (node.kind == NodeKind::edge || node.kind == NodeKind::look) {
                fail("something to repeat", "an assertion");
            }
            auto greed = RegexNode::Greed::greedy;
            // Of a counted repeat, Ruby's syntax makes '+' another repeat, and '?' too where the count is exact.
            if (!(counted && min == max) && take("?")) {
                greed = RegexNode::Greed::lazy;
            } else if (!counted && take("+")) {
                greed = RegexNode::Greed::possessive;
            }
            node = repeated(std::move(node), min, max, greed);
        }
    }

    bool is_count() const {
        const std::size_t close = text_.find('}', at_);
        if (close == std::string_view::npos || close == at_ + 1) { return false; }
        const std::string_view inside = text_.substr(at_ + 1, close - at_ - 1);
        return inside.find_first_not_of("0123456789,") == std::string_view::npos && inside != "," &&
               std::count(inside.begin(), inside.end(), ',') <= 1;
    }

    void take_count(std::uint32_t& min, std::uint32_t& max) {
        const auto number = [&](std::uint32_t otherwise) {
            std::uint32_t value = 0;
            bool any = false;
            for (; !at_end() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_, any = true) {
                value = value * 10 + static_cast<std::uint32_t>(text_[at_] - '0');
                if (value > count_limit) { fail("a count of at most 1000", "more"); }
            }
            return any ? value : otherwise;
        };
        take("{");
        min = number(0);
        max = take(",") ? number(RegexNode::unlimited) : min;
        if (!take("}") || max < min || max == 0) { fail("a count such as {2,5}", "another"); }
    }

    RegexNode set_node(std::vector<Item> items, bool negated = false) {
        RegexNode node;
        node.kind = NodeKind::set;
        node.set.items = std::move(items);
        node.set.negated = negated;
        node.set.finish();
        return node;
    }

    /// With its other cases where case does not matter.
    void add_range(std::vector<Item>& items, char32_t first, char32_t last) const {
        items.push_back(range_item(first, last));
        constexpr char32_t most = 0x400;
        if (!fold_ || last - first > most) { return; }
        for (char32_t code = first; code <= last; ++code) {
            const char32_t lower = simple_lower(code);
            items.push_back(range_item(lower, lower));
            if (lower >= U'a' && lower <= U'z') { items.push_back(range_item(lower - 32, lower - 32)); }
            if (lower == U's') { items.push_back(range_item(0x17F, 0x17F)); }
            if (lower == U'k') { items.push_back(range_item(0x212A, 0x212A)); }
            if (lower < 0x80) { continue; }
            for (char32_t other = lower >= 0x200 ? lower - 0x200 : 0x80; other < lower + 0x200 && other < stray;
                 ++other) {
                if (simple_lower(other) == lower) { items.push_back(range_item(other, other)); }
            }
        }
    }

    RegexNode literal(char32_t code) {
        std::vector<Item> items;
        add_range(items, code, code);
        return set_node(std::move(items));
    }

    RegexNode edge_node(RegexNode::Edge edge) {
        RegexNode node;
        node.kind = NodeKind::edge;
        node.edge = edge;
        return node;
    }

    bool take_look(RegexNode& node) {
        node.behind = ahead("?<=") || ahead("?<!");
        node.negated = ahead("?!") || ahead("?<!");
        return take("?=") || take("?!") || take("?<=") || take("?<!");
    }

    RegexNode group() {
        RegexNode node;
        const bool fold = fold_, any_line = any_line_;
        if (take_look(node)) {
            node.kind = NodeKind::look;
            node.parts.push_back(choice());
        } else if (take("?>")) {
            node.kind = NodeKind::atomic;
            node.parts.push_back(choice());
        } else if (take("?i:")) {
            fold_ = true;
            node = choice();
        } else if (take("?-i:")) {
            fold_ = false;
            node = choice();
        } else if (take("?m:")) {
            any_line_ = true;
            node = choice();
        } else {
            if (ahead("?") && !take("?:")) { fail("a group that heed knows", "another"); }
            node = choice();
        }
        fold_ = fold;
        any_line_ = any_line;
        if (!take(")")) { fail("')'", "the end"); }
        return node;
    }

    RegexNode atom() {
        if (take("(")) { return group(); }
        if (take("[")) {
            RegexNode node;
            node.kind = NodeKind::set;
            node.set = bracket();
            return node;
        }
        if (take(".")) {  // of a line, or of any with (?m)
            return any_line_ ? set_node({range_item(0, stray + 0xFF)}) : set_node({range_item(U'\n', U'\n')}, true);
        }
        if (take("^")) { return edge_node(RegexNode::Edge::line_begin); }
        if (take("$")) { return edge_node(RegexNode::Edge::line_end); }
        if (take("\\")) { return escaped_atom(); }
        if (ahead("*") || ahead("+") || ahead("?")) { fail("something to repeat", "nothing"); }
        return literal(character());
    }

    RegexNode escaped_atom() {
        using Edge = RegexNode::Edge;
        if (take("b")) { return edge_node(Edge::word); }
        if (take("B")) { return edge_node(Edge::no_word); }
        if (take("A")) { return edge_node(Edge::text_begin); }
        if (take("z")) { return edge_node(Edge::text_end); }
        if (take("Z")) { return edge_node(Edge::last_line_end); }
        std::vector<Item> items;
        escaped(items);
        // Oniguruma's \\w has some superscripts and fractions that it has not in brackets.
        for (Item& item : items) { item.number = item.kind == Item::Kind::word ? latin_numbers : item.number; }
        return set_node(std::move(items));
    }

    char32_t hexadecimal(std::size_t digits) {
        char32_t value = 0;
        for (std::size_t n = 0; n < digits; ++n) {
            const char32_t digit = character();
            const char32_t lower = simple_lower(digit);
            const bool decimal = digit >= U'0' && digit <= U'9';
            if (!decimal && !(lower >= U'a' && lower <= U'f')) { fail("hexadecimal digits", "something else"); }
            value = value * 16 + (decimal ? digit - U'0' : lower - U'a' + 10);
            if (value >= stray) { fail("a character of Unicode", "a larger number"); }
        }
        return value;
    }

    /// After a backslash, in or out of brackets: what adds to a set.
    void escaped(std::vector<Item>& items) {
        const auto add = [&](Item::Kind kind, bool negated) { items.push_back({.kind = kind, .negated = negated}); };
        if (take("s")) { return add(Item::Kind::space, false); }
        if (take("S")) { return add(Item::Kind::space, true); }
        if (take("w")) { return add(Item::Kind::word, false); }
        if (take("W")) { return add(Item::Kind::word, true); }
        if (take("d")) { return items.push_back(categories_item(bit(Category::Nd), false)); }
        if (take("D")) { return items.push_back(categories_item(bit(Category::Nd), true)); }
        if (take("h") || ahead("H")) {
            const bool negated = take("H");
            if (!negated) { return add_all(items, *posix_items("xdigit")); }
            for (const auto& [first, last] : {std::pair{U'\0', U'/'}, {U':', U'@'}, {U'G', U'`'}, {U'g', stray - 1}}) {
                items.push_back(range_item(first, last));
            }
            return;
        }
        if (ahead("p") || ahead("P")) { return property(items, take("P") || !take("p")); }
        const char32_t code = single();
        add_range(items, code, code);
    }

    /// After a backslash: one character.
    char32_t single() {
        const char32_t code = character();
        switch (code) {
            case U'n': return U'\n';
            case U'r': return U'\r';
            case U't': return U'\t';
            case U'f': return U'\f';
            case U'v': return U'\v';
            case U'a': return U'\a';
            case U'e': return 0x1B;
            case U'0': return 0;
            case U'u': return hexadecimal(4);
            case U'x':
                if (take("{")) {
                    const std::size_t close = text_.find('}', at_);
                    if (close == std::string_view::npos || close == at_) { fail("'}'", "none"); }
                    const char32_t value = hexadecimal(close - at_);
                    take("}");
                    return value;
                }
                return hexadecimal(2);
            default: break;
        }
        const bool word = code < 128 && is_word(code) && code != U'_';
        if (word) { fail("an escape that heed knows", in_quotes(text_.substr(at_ - 2, 2))); }
        return code;
    }

    static void add_all(std::vector<Item>& items, const std::vector<Item>& more) {
        items.insert(items.end(), more.begin(), more.end());
    }

    void property(std::vector<Item>& items, bool negated) {
        if (!take("{")) { fail("'{'", "something else"); }
        if (take("^")) { negated = !negated; }
        const std::size_t close = text_.find('}', at_);
        if (close == std::string_view::npos) { fail("'}'", "none"); }
        const std::string_view name = text_.substr(at_, close - at_);
        Item item{.negated = negated};
        if (const auto categories = categories_named(name)) {
            item.kind = Item::Kind::categories;
            item.categories = *categories;
        } else if (const auto script = script_named(name)) {
            item.kind = Item::Kind::script;
            item.number = *script;
        } else if (name == "White_Space") {
            item.kind = Item::Kind::space;
        } else if (const auto posix = posix_items(std::string(name)); posix && (posix->size() == 1 || !negated)) {
            at_ = close + 1;
            for (Item one : *posix) {
                one.negated = negated;
                items.push_back(one);
            }
            return;
        } else {
            fail("a category, script or class that heed knows", in_quotes(name));
        }
        at_ = close + 1;
        items.push_back(item);
    }

    /// After "[:".
    void posix_class(std::vector<Item>& items) {
        const bool negated = take("^");
        const std::size_t close = text_.find(":]", at_);
        if (close == std::string_view::npos) { fail("':]'", "none"); }
        const std::string name(text_.substr(at_, close - at_));
        const auto posix = posix_items(name);
        if (!posix || (negated && posix->size() > 1)) { fail("a class that heed knows", in_quotes(name)); }
        at_ = close + 2;
        for (Item one : *posix) {
            one.negated = negated;
            items.push_back(one);
        }
    }

    /// After '['.
    CharacterSet bracket() {
        if (++depth_ > depth_limit) { fail("at most 64 levels", "more"); }
        CharacterSet set;
        set.negated = take("^");
        std::vector<Item> items;
        std::vector<std::vector<Item>> all;
        for (bool first = true; first || !take("]"); first = false) {
            if (at_end()) { fail("']'", "the end"); }
            if (take("&&")) {
                all.push_back(std::move(items));
                items.clear();
                continue;
            }
            if (take("[:")) {
                posix_class(items);
                continue;
            }
            if (take("[")) {
                set.nested.push_back(bracket());
                items.push_back({.kind = Item::Kind::set, .number = static_cast<int>(set.nested.size()) - 1});
                continue;
            }
            bracket_item(items);
        }
        all.push_back(std::move(items));
        set.items = std::move(all.front());
        set.and_also.assign(std::make_move_iterator(all.begin() + 1), std::make_move_iterator(all.end()));
        set.finish();
        --depth_;
        return set;
    }

    void bracket_item(std::vector<Item>& items) {
        char32_t first = 0;
        if (take("\\")) {
            if (ahead("p") || ahead("P") || ahead("s") || ahead("S") || ahead("w") || ahead("W") || ahead("d") ||
                ahead("D") || ahead("h") || ahead("H")) {
                escaped(items);
                return;
            }
            first = single();
        } else {
            first = character();
        }
        const bool range = ahead("-") && at_ + 1 < text_.size() && text_[at_ + 1] != ']';
        if (!range) { return add_range(items, first, first); }
        take("-");
        if (ahead("[")) { fail("the end of a range", "'['"); }
        const char32_t last = take("\\") ? single() : character();
        if (last < first) { fail("a range that ascends", "one that does not"); }
        add_range(items, first, last);
    }

    std::string_view text_;
    std::size_t at_ = 0;
    int depth_ = 0;
    bool fold_ = false, any_line_ = false;
};

}  // namespace

void CharacterSet::finish() {
    for (char32_t code = 0; code < 128; ++code) {
        if (tested(code)) { ascii[code / 64] |= std::uint64_t{1} << (code % 64); }
    }
}

bool CharacterSet::any_of(const std::vector<Item>& list, char32_t code) const {
    for (const Item& item : list) {
        bool has = false;
        switch (item.kind) {
            case Item::Kind::range: has = code >= item.first && code <= item.last; break;
            case Item::Kind::categories: has = is_in(item.categories, code); break;
            case Item::Kind::script: has = is_in_script(item.number, code); break;
            case Item::Kind::space: has = is_space(code); break;
            case Item::Kind::word:
                has = is_word(code) || (item.number == latin_numbers && is_latin_number(code));
                break;
            case Item::Kind::set: has = nested[static_cast<std::size_t>(item.number)].has(code); break;
        }
        if (has != item.negated) { return true; }
    }
    return false;
}

bool CharacterSet::tested(char32_t code) const {
    bool has = any_of(items, code);
    for (const auto& list : and_also) { has = has && any_of(list, code); }
    return has != negated;
}

RegexNode parse_regex(std::string_view pattern) { return RegexParser(pattern).whole(); }

}  // namespace heed::text
