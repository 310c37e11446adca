#include "text/regex.h"

#include <heed/error.h>

#include <algorithm>
#include <utility>

#include "base/refuse.h"
#include "text/regex_syntax.h"

namespace heed::text {

namespace {

constexpr std::size_t program_limit = 20000;
constexpr std::size_t places_limit = 1000000;

[[noreturn]] void give_up(const std::string& how) {
    refuse("Tokenizer", "pattern", "one that a text can be matched with quickly", "one that " + how);
}

/// With which bytes a node can begin, and whether it can be empty.
struct Beginning {
    std::bitset<256> bytes;
    bool empty = true;
};

Beginning beginning_of(const RegexNode& node) {
    using Kind = RegexNode::Kind;
    Beginning result;
    switch (node.kind) {
        case Kind::set:
            for (unsigned byte = 0; byte < 128; ++byte) { result.bytes[byte] = node.set.has(byte); }
            for (unsigned byte = 128; byte < 256; ++byte) { result.bytes[byte] = true; }
            result.empty = false;
            break;
        case Kind::sequence:
            for (const RegexNode& part : node.parts) {
                const Beginning next = beginning_of(part);
                result.bytes |= next.bytes;
                result.empty = next.empty;
                if (!next.empty) { break; }
            }
            break;
        case Kind::choice:
            result.empty = false;
            for (const RegexNode& part : node.parts) {
                const Beginning next = beginning_of(part);
                result.bytes |= next.bytes;
                result.empty = result.empty || next.empty;
            }
            break;
        case Kind::repeat:
            result = beginning_of(node.parts.front());
            result.empty = result.empty || node.min == 0;
            break;
        case Kind::atomic: result = beginning_of(node.parts.front()); break;
        case Kind::empty:
        case Kind::look:
        case Kind::edge: break;
    }
    return result;
}

}  // namespace

class RegexCompiler {
public:
    RegexCompiler(Regex& to, std::string_view pattern) : to_(to), pattern_(pattern) {}

    void whole(const RegexNode& node) {
        compile(node);
        add({.code = Regex::Code::match});
        const Beginning beginning = beginning_of(node);
        to_.first_ = beginning.bytes;
        to_.may_be_empty_ = beginning.empty;
    }

private:
    using Code = Regex::Code;
    using Op = Regex::Op;

    [[noreturn]] void refuse(const std::string& what) const {
        heed::refuse("Tokenizer", "pattern", what, std::string(pattern_.substr(0, 200)));
    }
    std::uint32_t add(Op op) {
        if (to_.ops_.size() >= program_limit) { refuse("an expression of at most 20000 steps"); }
        to_.ops_.push_back(op);
        return here() - 1;
    }
    std::uint32_t here() const { return static_cast<std::uint32_t>(to_.ops_.size()); }
    std::uint32_t add_set(const CharacterSet& set) {
        to_.sets_.push_back(set);
        return static_cast<std::uint32_t>(to_.sets_.size() - 1);
    }
    /// A choice between two ways whose places are filled in later.
    std::uint32_t add_fork() {
        to_.choices_.emplace_back(2);
        for (Regex::Choice& choice : to_.choices_.back()) { choice.first.set(); }
        return add({.code = Code::choose, .target = static_cast<std::uint32_t>(to_.choices_.size() - 1)});
    }
    std::vector<Regex::Choice>& choices_at(std::uint32_t op) { return to_.choices_[to_.ops_[op].target]; }

    void compile(const RegexNode& node) {
        using Kind = RegexNode::Kind;
        switch (node.kind) {
            case Kind::empty: break;
            case Kind::set: add({.code = Code::one, .set = add_set(node.set)}); break;
            case Kind::sequence:
                for (const RegexNode& part : node.parts) { compile(part); }
                break;
            case Kind::choice: compile_choice(node); break;
            case Kind::repeat: compile_repeat(node); break;
            case Kind::look: compile_look(node); break;
            case Kind::atomic: compile_atomic(node.parts.front()); break;
            case Kind::edge: add({.code = edge_code(node.edge)}); break;
        }
    }

    static Code edge_code(RegexNode::Edge edge) {
        switch (edge) {
            case RegexNode::Edge::line_begin: return Code::line_begin;
            case RegexNode::Edge::line_end: return Code::line_end;
            case RegexNode::Edge::text_begin: return Code::text_begin;
            case RegexNode::Edge::text_end: return Code::text_end;
            case RegexNode::Edge::last_line_end: return Code::last_line_end;
            case RegexNode::Edge::word: return Code::word_edge;
            case RegexNode::Edge::no_word: break;
        }
        return Code::no_word_edge;
    }

    void compile_choice(const RegexNode& node) {
        to_.choices_.emplace_back();
        const auto index = static_cast<std::uint32_t>(to_.choices_.size() - 1);
        add({.code = Code::choose, .target = index});
        std::vector<std::uint32_t> ends;
        for (const RegexNode& part : node.parts) {
            Beginning beginning = beginning_of(part);
            if (beginning.empty) { beginning.bytes.set(); }
            to_.choices_[index].push_back({here(), beginning.bytes});
            compile(part);
            ends.push_back(add({.code = Code::jump}));
        }
        for (const std::uint32_t end : ends) { to_.ops_[end].target = here(); }
    }

    void compile_repeat(const RegexNode& node) {
        const RegexNode& body = node.parts.front();
        if (node.greed == RegexNode::Greed::possessive && body.kind != RegexNode::Kind::set) {
            RegexNode greedy = node;
            greedy.greed = RegexNode::Greed::greedy;
            return compile_atomic(greedy);
        }
        if (body.kind == RegexNode::Kind::set) {
            const auto greed = static_cast<Regex::Greed>(node.greed);
            add({.code = Code::run, .greed = greed, .set = add_set(body.set), .min = node.min, .max = node.max});
            return;
        }
        const bool lazy = node.greed == RegexNode::Greed::lazy;
        for (std::uint32_t n = 0; n < node.min; ++n) { compile(body); }
        if (node.max == RegexNode::unlimited) {
            if (beginning_of(body).empty) { refuse("repeats of something that is never empty"); }
            const std::uint32_t fork = add_fork();
            const std::uint32_t begin = here();
            compile(body);
            add({.code = Code::jump, .target = fork});
            set_fork(fork, begin, here(), lazy);
            return;
        }
        std::vector<std::pair<std::uint32_t, std::uint32_t>> forks;
        for (std::uint32_t n = node.min; n < node.max; ++n) {
            const std::uint32_t fork = add_fork();
            forks.emplace_back(fork, here());
            compile(body);
        }
        for (const auto& [fork, begin] : forks) { set_fork(fork, begin, here(), lazy); }
    }

    void set_fork(std::uint32_t fork, std::uint32_t again, std::uint32_t on, bool lazy) {
        choices_at(fork)[0].op = lazy ? on : again;
        choices_at(fork)[1].op = lazy ? again : on;
    }

    void compile_atomic(const RegexNode& body) {
        const std::uint32_t op = add({.code = Code::atomic});
        compile(body);
        add({.code = Code::match});
        to_.ops_[op].target = here();
    }

    void compile_look(const RegexNode& node) {
        const std::uint32_t op = add({.code = Code::look, .negated = node.negated, .behind = node.behind});
        const RegexNode& body = node.parts.front();
        if (node.behind) { to_.ops_[op].min = length_of(body); }
        compile(body);
        add({.code = Code::match});
        to_.ops_[op].target = here();
    }

    /// Of what stands behind, in characters; it has to be known.
    std::uint32_t length_of(const RegexNode& node) const {
        using Kind = RegexNode::Kind;
        std::uint32_t length = 0;
        switch (node.kind) {
            case Kind::set: return 1;
            case Kind::sequence:
                for (const RegexNode& part : node.parts) { length += length_of(part); }
                return length;
            case Kind::choice:
                length = length_of(node.parts.front());
                for (const RegexNode& part : node.parts) {
                    if (length_of(part) != length) { refuse("choices of one length when looking behind"); }
                }
                return length;
            case Kind::repeat:
                if (node.min != node.max) { refuse("a fixed length when looking behind"); }
                return node.min * length_of(node.parts.front());
            case Kind::atomic: return length_of(node.parts.front());
            case Kind::empty:
            case Kind::look:
            case Kind::edge: break;
        }
        return 0;
    }

    Regex& to_;
    std::string_view pattern_;
};

Regex::Regex(std::string_view pattern) { RegexCompiler(*this, pattern).whole(parse_regex(pattern)); }

bool Regex::step_run(std::string_view text, Scratch& scratch, std::uint32_t& op, std::size_t& at) const {
    const Op& run = ops_[op];
    const CharacterSet& set = sets_[run.set];
    std::uint32_t count = 0;
    std::size_t least = at;
    const std::uint32_t most = run.greed == Greed::lazy ? run.min : run.max;
    while (count < most && at < text.size()) {
        const Character next = character_at(text, at);
        if (!set.has(next.code)) { break; }
        at += static_cast<std::size_t>(next.size);
        if (++count == run.min) { least = at; }
    }
    scratch.steps_ += count;
    if (count < run.min) { return false; }
    const bool more = run.greed == Greed::lazy ? run.min < run.max : run.greed == Greed::greedy && at > least;
    if (more) { scratch.stack_.push_back({op, count, at, least}); }
    ++op;
    return true;
}

bool Regex::step_choice(std::string_view text, Scratch& scratch, std::uint32_t& op, std::size_t at,
                        std::uint32_t from) const {
    const std::vector<Choice>& choices = choices_[ops_[op].target];
    const auto fits = [&](const Choice& choice) {
        return at < text.size() ? choice.first[static_cast<unsigned char>(text[at])] : choice.first.all();
    };
    while (from < choices.size() && !fits(choices[from])) { ++from; }
    if (from == choices.size()) { return false; }
    std::uint32_t next = from + 1;
    while (next < choices.size() && !fits(choices[next])) { ++next; }
    if (next < choices.size()) { scratch.stack_.push_back({op, next, at, at}); }
    op = choices[from].op;
    return true;
}

bool Regex::step_look(std::string_view text, Scratch& scratch, const Op& look, std::uint32_t body,
                      std::size_t at) const {
    for (std::uint32_t back = 0; back < look.min; ++back) {
        if (at == 0) { return look.negated; }
        at -= static_cast<std::size_t>(character_before(text, at).size);
    }
    std::size_t end = 0;
    return match(text, body, at, scratch, end) != look.negated;
}

/// One operation; false where it does not fit.
bool Regex::step(std::string_view text, Scratch& scratch, std::uint32_t& op, std::size_t& at) const {
    const Op& now = ops_[op];
    const auto word = [](char32_t code) { return is_word(code) || is_latin_number(code); };
    const auto word_before = [&] { return at > 0 && word(character_before(text, at).code); };
    const auto word_after = [&] { return at < text.size() && word(character_at(text, at).code); };
    bool fits = true;
    switch (now.code) {
        case Code::one: {
            if (at == text.size()) { return false; }
            const Character next = character_at(text, at);
            if (!sets_[now.set].has(next.code)) { return false; }
            at += static_cast<std::size_t>(next.size);
            break;
        }
        case Code::run: return step_run(text, scratch, op, at);
        case Code::choose: return step_choice(text, scratch, op, at, 0);
        case Code::jump: op = now.target; return true;
        case Code::look:
            fits = step_look(text, scratch, now, op + 1, at);
            op = now.target;
            return fits;
        case Code::atomic:
            fits = match(text, op + 1, at, scratch, at);
            op = now.target;
            return fits;
        case Code::line_begin: fits = at == 0 || text[at - 1] == '\n'; break;
        case Code::line_end: fits = at == text.size() || text[at] == '\n'; break;
        case Code::text_begin: fits = at == 0; break;
        case Code::text_end: fits = at == text.size(); break;
        case Code::last_line_end: fits = at == text.size() || (at + 1 == text.size() && text[at] == '\n'); break;
        case Code::word_edge: fits = word_before() != word_after(); break;
        case Code::no_word_edge: fits = word_before() == word_after(); break;
        case Code::match: break;
    }
    ++op;
    return fits;
}

/// The last place where there was another way; false where there is none above `floor`.
bool Regex::resume(std::string_view text, Scratch& scratch, std::size_t floor, std::uint32_t& op,
                   std::size_t& at) const {
    while (scratch.stack_.size() > floor) {
        Scratch::Resume& last = scratch.stack_.back();
        const Op& now = ops_[last.op];
        op = last.op;
        if (now.code == Code::choose) {
            at = last.at;
            const std::uint32_t from = last.choice;
            scratch.stack_.pop_back();
            if (step_choice(text, scratch, op, at, from)) { return true; }
            continue;
        }
        if (now.greed == Greed::greedy) {  // one character less
            at = last.at - static_cast<std::size_t>(character_before(text, last.at).size);
            last.at = at;
            if (at <= last.least) { scratch.stack_.pop_back(); }
            ++op;
            return true;
        }
        // lazy: one more
        const bool room = last.choice < now.max && last.at < text.size();
        const Character next = room ? character_at(text, last.at) : Character{0, 0};
        if (!room || !sets_[now.set].has(next.code)) {
            scratch.stack_.pop_back();
            continue;
        }
        ++last.choice;
        at = last.at += static_cast<std::size_t>(next.size);
        ++op;
        return true;
    }
    return false;
}

bool Regex::match(std::string_view text, std::uint32_t op, std::size_t at, Scratch& scratch, std::size_t& end) const {
    const std::size_t floor = scratch.stack_.size();
    constexpr std::size_t patience = 100;  // ways tried before they are written down
    std::size_t tried = 0;
    Visited visited;  // ways that led nowhere: without captures, they never will
    while (true) {
        if (ops_[op].code == Code::match) {
            end = at;
            scratch.stack_.resize(floor);
            return true;
        }
        if (++scratch.steps_ > scratch.limit_) { give_up("takes more than 100 steps a byte"); }
        if (step(text, scratch, op, at)) { continue; }
        do {
            if (!resume(text, scratch, floor, op, at)) { return false; }
            if (visited.size() > places_limit) { give_up("remembers more than 1000000 places"); }
        } while (++tried > patience && !visited.insert(static_cast<std::uint64_t>(at) << 20U | op).second);
    }
}

void Regex::find_all(std::string_view text, Scratch& scratch, std::vector<Span>& found) const {
    constexpr std::size_t steps_a_byte = 100, steps_at_least = 1000000;
    found.clear();
    scratch.stack_.clear();
    scratch.steps_ = 0;
    scratch.limit_ = steps_at_least + steps_a_byte * text.size();
    bool any = false;
    std::size_t last = 0;
    for (std::size_t at = 0; at <= text.size();) {
        std::size_t end = 0;
        const bool possible = may_be_empty_ || (at < text.size() && first_[static_cast<unsigned char>(text[at])]);
        const bool hit = possible && match(text, 0, at, scratch, end);
        if (hit && !(end == at && any && last == at)) {
            found.push_back({at, end});
            any = true;
            last = end;
            at = end;
            continue;  // after an empty match it finds the same again, and then passes over it
        }
        if (at == text.size()) { break; }
        at += static_cast<std::size_t>(character_at(text, at).size);
    }
}

}  // namespace heed::text
