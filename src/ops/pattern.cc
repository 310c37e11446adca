#include <heed/pattern.h>

#include <cstring>
#include <utility>

#include "ops/pattern_node.h"

namespace heed {
namespace {

using pattern_detail::concat;
using pattern_detail::count_between;
using NodePointer = std::shared_ptr<const Pattern::Node>;

/// `both` (&) and `either` (|) of two or more patterns.
class Combination final : public Pattern::Node {
public:
    /// Chains of one operator are kept flat, so that a & b & c costs one level of calls.
    Combination(Kind operation, NodePointer a, NodePointer b) : Node(operation) {
        for (NodePointer* side : {&a, &b}) {
            if ((*side)->kind == operation) {
                const auto& inner = static_cast<const Combination&>(**side).parts_;
                parts_.insert(parts_.end(), inner.begin(), inner.end());
            } else {
                parts_.push_back(std::move(*side));
            }
        }
    }

    bool allows(std::int64_t batch, std::int64_t head, std::int64_t query, std::int64_t key) const override {
        const bool unanimous = kind == Kind::both;
        for (const NodePointer& part : parts_) {
            if (part->allows(batch, head, query, key) != unanimous) return !unanimous;
        }
        return unanimous;
    }

    /// `both` is none as soon as one part is, and all when every part is; `either` the other way round.
    Cover cover(const PatternTile& tile) const override {
        const Cover decisive = kind == Kind::both ? Cover::none : Cover::all;
        const Cover unanimous = kind == Kind::both ? Cover::all : Cover::none;
        Cover result = unanimous;
        for (const NodePointer& part : parts_) {
            const Cover of_part = part->cover(tile);
            if (of_part == decisive) return decisive;
            if (of_part == Cover::some) result = Cover::some;
        }
        return result;
    }

    void row(std::int64_t batch, std::int64_t head, std::int64_t query, std::int64_t key_begin, std::int64_t key_end,
             std::uint8_t* allowed) const override {
        // On the stack, so that rows never allocate; a tile of any usual width is one chunk.
        constexpr std::size_t chunk = 512;
        std::uint8_t of_part[chunk];
        while (key_begin < key_end) {
            const std::size_t width = std::min<std::size_t>(count_between(key_begin, key_end), chunk);
            const std::int64_t chunk_end = key_begin + static_cast<std::int64_t>(width);
            parts_[0]->row(batch, head, query, key_begin, chunk_end, allowed);
            for (std::size_t n = 1; n < parts_.size(); ++n) {
                parts_[n]->row(batch, head, query, key_begin, chunk_end, of_part);
                if (kind == Kind::both) {
                    for (std::size_t k = 0; k < width; ++k) allowed[k] = allowed[k] & of_part[k];
                } else {
                    for (std::size_t k = 0; k < width; ++k) allowed[k] = allowed[k] | of_part[k];
                }
            }
            key_begin = chunk_end;
            allowed += width;
        }
    }

    /// Parentheses wherever the operator changes: nobody should have to know which of & and | binds tighter.
    std::string describe(Lists lists) const override {
        std::string text;
        for (const NodePointer& part : parts_) {
            if (!text.empty()) text += kind == Kind::both ? " & " : " | ";
            text += part->kind == Kind::leaf ? part->describe(lists) : concat("(", part->describe(lists), ")");
        }
        return text;
    }

    /// Two answers are joined as soon as there are two, so that the stack grows with the nesting alone.
    void write(PatternWriter& program) const override {
        for (std::size_t n = 0; n < parts_.size(); ++n) {
            parts_[n]->write(program);
            if (n > 0) { program.write(kind == Kind::both ? PatternCode::both : PatternCode::either, {}); }
        }
    }

    void check(const char* function, std::int64_t batches, std::int64_t heads) const override {
        for (const NodePointer& part : parts_) part->check(function, batches, heads);
    }
    std::span<const NodePointer> parts() const override {
        return kind == Kind::both ? std::span<const NodePointer>(parts_) : std::span<const NodePointer>();
    }

private:
    std::vector<NodePointer> parts_;
};

class PerHead final : public Pattern::Node {
public:
    explicit PerHead(std::vector<Pattern> pattern_of_head) : pattern_of_head_(std::move(pattern_of_head)) {}

    bool allows(std::int64_t batch, std::int64_t head, std::int64_t query, std::int64_t key) const override {
        return has(head) && of(head).allows(batch, head, query, key);
    }
    Cover cover(const PatternTile& tile) const override {
        return has(tile.head) ? of(tile.head).cover(tile) : Cover::none;
    }
    void row(std::int64_t batch, std::int64_t head, std::int64_t query, std::int64_t key_begin, std::int64_t key_end,
             std::uint8_t* allowed) const override {
        if (has(head)) {
            of(head).row(batch, head, query, key_begin, key_end, allowed);
        } else {
            std::memset(allowed, 0, count_between(key_begin, key_end));
        }
    }
    std::string describe(Lists lists) const override {
        std::string text;
        for (const Pattern& pattern : pattern_of_head_) {
            text += concat(text.empty() ? "" : ", ", lists == Lists::all ? pattern.text() : pattern.describe());
        }
        return concat("per_head(", text, ")");
    }
    void write(PatternWriter& program) const override {
        const auto heads = static_cast<std::int64_t>(pattern_of_head_.size());
        const std::int64_t table = program.here() + 2;
        program.write(PatternCode::per_head, std::vector<std::int64_t>(pattern_of_head_.size()));
        std::vector<std::int64_t> exits;
        for (std::int64_t head = 0; head < heads; ++head) {
            program.words[static_cast<std::size_t>(table + head)] = program.here();
            if (of(head)) {
                node_of(of(head))->write(program);
            } else {
                program.write(PatternCode::everything, {});
            }
            program.write(PatternCode::go_on_at, {0});
            exits.push_back(program.here() - 1);
        }
        for (const std::int64_t exit : exits) { program.words[static_cast<std::size_t>(exit)] = program.here(); }
    }
    void check(const char* function, std::int64_t batches, std::int64_t heads) const override {
        if (pattern_of_head_.size() != static_cast<std::uint64_t>(heads)) {
            refuse(function, "pattern: patterns of per_head", concat(heads, ", one for each query head"),
                   concat(pattern_of_head_.size()));
        }
        for (const Pattern& pattern : pattern_of_head_) pattern.check(function, batches, heads);
    }

private:
    bool has(std::int64_t head) const {
        return head >= 0 && static_cast<std::uint64_t>(head) < pattern_of_head_.size();
    }
    const Pattern& of(std::int64_t head) const { return pattern_of_head_[static_cast<std::size_t>(head)]; }

    std::vector<Pattern> pattern_of_head_;
};

}  // namespace

Pattern without_bands(const Pattern& pattern, std::int64_t& left, std::int64_t& right) {
    if (!pattern || node_of(pattern)->narrow_band(left, right)) { return {}; }
    if (node_of(pattern)->parts().empty()) { return pattern; }
    Pattern rest;
    for (const NodePointer& part : node_of(pattern)->parts()) {
        if (!part->narrow_band(left, right)) { rest = rest & pattern_of(part); }
    }
    return rest;
}

std::vector<std::int64_t> pattern_program(const Pattern& pattern) {
    PatternWriter program;
    if (pattern) { node_of(pattern)->write(program); }
    return std::move(program.words);
}

bool Pattern::allows(std::int64_t batch, std::int64_t head, std::int64_t query, std::int64_t key) const {
    return !node_ || node_->allows(batch, head, query, key);
}

Cover Pattern::cover(const PatternTile& tile) const {
    if (tile.query_begin >= tile.query_end || tile.key_begin >= tile.key_end) return Cover::none;
    return node_ ? node_->cover(tile) : Cover::all;
}

void Pattern::row(std::int64_t batch, std::int64_t head, std::int64_t query, std::int64_t key_begin,
                  std::int64_t key_end, std::uint8_t* allowed) const {
    if (key_begin >= key_end) return;
    if (node_) {
        node_->row(batch, head, query, key_begin, key_end, allowed);
    } else {
        std::memset(allowed, 1, count_between(key_begin, key_end));
    }
}

std::string Pattern::describe() const { return node_ ? node_->describe(Node::Lists::few) : "everything"; }

std::string Pattern::text() const { return node_ ? node_->describe(Node::Lists::all) : "everything"; }

void Pattern::check(const char* function, std::int64_t batches, std::int64_t heads) const {
    if (node_) node_->check(function, batches, heads);
}

Pattern operator&(Pattern a, Pattern b) {
    if (!a) return b;
    if (!b) return a;
    return pattern_of(std::make_shared<Combination>(Pattern::Node::Kind::both, node_of(a), node_of(b)));
}

Pattern operator|(Pattern a, Pattern b) {
    if (!a || !b) return {};
    return pattern_of(std::make_shared<Combination>(Pattern::Node::Kind::either, node_of(a), node_of(b)));
}

Pattern patterns::per_head(std::vector<Pattern> pattern_of_head) {
    if (pattern_of_head.empty()) {
        refuse("patterns::per_head", "pattern_of_head", "a pattern for each query head", "none");
    }
    return pattern_of(std::make_shared<PerHead>(std::move(pattern_of_head)));
}

}  // namespace heed
