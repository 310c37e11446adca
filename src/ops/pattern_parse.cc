/// Patterns from text: the language that Pattern::describe() speaks.
#include <array>
#include <cctype>
#include <charconv>
#include <string>
#include <utility>

#include "ops/pattern_node.h"

namespace heed {
namespace {

using namespace pattern_detail;

/// Nobody nests so deep by hand, and the parser calls itself for each level.
constexpr int deepest = 64;
/// Positions that all document lists of a text may name; id*count could otherwise ask for any amount of memory.
constexpr std::int64_t most_ids = std::int64_t{1} << 24;

class Parser {
public:
    explicit Parser(std::string_view text) : text_(text) {}

    Pattern all() {
        Pattern pattern = either();
        if (at_ != text_.size()) { expected("& or | or the end"); }
        return pattern;
    }

private:
    /// a | b | c
    Pattern either() {
        if (++depth_ > deepest) {
            refuse("patterns::parse", "text", concat("at most ", deepest, " levels of brackets"), "more");
        }
        Pattern pattern = both();
        while (accept('|')) { pattern = std::move(pattern) | both(); }
        --depth_;
        return pattern;
    }

    /// a & b & c
    Pattern both() {
        Pattern pattern = one();
        while (accept('&')) { pattern = std::move(pattern) & one(); }
        return pattern;
    }

    Pattern one() {
        if (accept('(')) {
            Pattern pattern = either();
            require(')');
            return pattern;
        }
        skip_spaces();
        const std::size_t start = at_;
        const std::string name = word();
        if (name == "everything") { return no_arguments(Pattern()); }
        if (name == "causal") { return no_arguments(patterns::causal()); }
        for (const auto& [known, build] : builders) {
            if (name != known) { continue; }
            require('(');
            Pattern pattern = (this->*build)();
            require(')');
            return pattern;
        }
        at_ = start;
        expected(
            "a pattern (causal, window, padding, prefix, document, strided, fixed, dilated, global, random_blocks, "
            "blocks, per_head or everything)");
    }

    Pattern no_arguments(Pattern pattern) {
        if (accept('(')) { require(')'); }
        return pattern;
    }

    Pattern window() {
        const auto n = numbers<2>();
        return patterns::window(n[0], n[1]);
    }
    Pattern padding() { return patterns::padding(list()); }
    Pattern prefix() { return patterns::prefix(list()); }
    Pattern strided() { return patterns::strided(numbers<1>()[0]); }
    Pattern fixed() {
        const auto n = numbers<2>();
        return patterns::fixed(n[0], n[1]);
    }
    Pattern dilated() {
        const auto n = numbers<3>();
        return patterns::dilated(n[0], n[1], n[2]);
    }
    Pattern global() { return patterns::global_tokens(list()); }

    Pattern random_blocks() {
        const auto n = numbers<3>();
        require(',');
        skip_spaces();
        if (text_.substr(at_).starts_with("seed")) { at_ += 4; }
        return patterns::random_blocks(n[0], n[1], n[2], number<std::uint64_t>("a seed"));
    }

    Pattern blocks() {
        const std::int64_t query_size = integer();
        require('x');
        const std::int64_t key_size = integer();
        std::vector<patterns::BlockPair> pairs;
        while (accept(',')) {
            const std::int64_t query_block = integer();
            require(':');
            pairs.push_back({query_block, integer()});
        }
        return patterns::blocks(query_size, key_size, pairs);
    }

    Pattern document() {
        std::vector<std::vector<std::int64_t>> lists;
        do {
            std::vector<std::int64_t>& ids = lists.emplace_back();
            if (peek() == ';' || peek() == ')') { continue; }
            do {
                const std::int64_t id = integer();
                const std::int64_t count = accept('*') ? integer() : 1;
                expect_at_least("patterns::parse", "text: count in document", count, 0);
                if (count > most_ids - ids_) {
                    refuse("patterns::parse", "text", concat("at most ", most_ids, " ids in document"), "more");
                }
                ids_ += count;
                ids.insert(ids.end(), static_cast<std::size_t>(count), id);
            } while (accept(','));
        } while (accept(';'));
        return patterns::document(std::move(lists));
    }

    Pattern per_head() {
        std::vector<Pattern> pattern_of_head;
        do { pattern_of_head.push_back(either()); } while (accept(','));
        return patterns::per_head(std::move(pattern_of_head));
    }

    struct Builder {
        std::string_view name;
        Pattern (Parser::*build)();
    };
    static const Builder builders[12];

    template <std::size_t Count>
    std::array<std::int64_t, Count> numbers() {
        std::array<std::int64_t, Count> result{};
        for (std::size_t n = 0; n < Count; ++n) {
            if (n > 0) { require(','); }
            result[n] = integer();
        }
        return result;
    }

    /// Comma-separated, none included.
    std::vector<std::int64_t> list() {
        std::vector<std::int64_t> result;
        if (peek() == ')') { return result; }
        do { result.push_back(integer()); } while (accept(','));
        return result;
    }

    std::int64_t integer() { return number<std::int64_t>("a whole number"); }

    template <class Number>
    Number number(const char* what) {
        skip_spaces();
        Number value = 0;
        const char* begin = text_.data() + at_;
        const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
        if (error != std::errc()) { expected(what); }
        at_ += static_cast<std::size_t>(end - begin);
        return value;
    }

    std::string word() {
        std::string name;
        while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) != 0 || text_[at_] == '_')) {
            name += text_[at_++];
        }
        return name;
    }

    void skip_spaces() {
        while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n')) { ++at_; }
    }
    char peek() {
        skip_spaces();
        return at_ < text_.size() ? text_[at_] : '\0';
    }
    bool accept(char symbol) {
        const bool found = at_ <= text_.size() && peek() == symbol && at_ < text_.size();
        if (found) { ++at_; }
        skip_spaces();
        return found;
    }
    void require(char symbol) {
        if (!accept(symbol)) { expected(concat("'", std::string(1, symbol), "'")); }
    }

    [[noreturn]] void expected(const std::string& what) {
        skip_spaces();
        const std::string_view rest = text_.substr(at_, 20);
        refuse("patterns::parse", "text", concat(what, " at character ", at_ + 1),
               rest.empty() ? std::string("the end") : concat("'", std::string(rest), "'"));
    }

    std::string_view text_;
    std::size_t at_ = 0;
    int depth_ = 0;
    std::int64_t ids_ = 0;  ///< in document lists so far
};

const Parser::Builder Parser::builders[12] = {
    {"window", &Parser::window},        {"padding", &Parser::padding},
    {"prefix", &Parser::prefix},        {"document", &Parser::document},
    {"strided", &Parser::strided},      {"fixed", &Parser::fixed},
    {"dilated", &Parser::dilated},      {"global", &Parser::global},
    {"global_tokens", &Parser::global}, {"random_blocks", &Parser::random_blocks},
    {"blocks", &Parser::blocks},        {"per_head", &Parser::per_head},
};

}  // namespace

Pattern patterns::parse(std::string_view text) { return Parser(text).all(); }

}  // namespace heed
