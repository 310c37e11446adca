/// Patterns that follow from arithmetic on positions: bands around the diagonal, lengths, fixed columns.
#include <memory>
#include <utility>

#include "ops/pattern_node.h"

namespace heed {
namespace {

using namespace pattern_detail;

/// i - left <= j <= i + right and j - i a multiple of step; -1 is unlimited. Causal, window, strided and dilated
/// are all of this kind.
class Band final : public Pattern::Node {
public:
    Band(std::int64_t left, std::int64_t right, std::int64_t step, std::string name)
        : left_(left), right_(right), step_(step), name_(std::move(name)) {}

    bool allows(std::int64_t, std::int64_t, std::int64_t query, std::int64_t key) const override {
        return first(query) <= key && key <= last(query) && (step_ == 1 || same_residue(query, key));
    }

    /// Exact: the differences j - i of a tile are all the integers of an interval, so the question is which
    /// multiples of step that interval holds.
    Cover cover(const PatternTile& tile) const override {
        std::int64_t low = 0;
        std::int64_t high = 0;
        if (__builtin_sub_overflow(tile.key_begin, tile.query_end - 1, &low) ||
            __builtin_sub_overflow(tile.key_end - 1, tile.query_begin, &high)) {
            return Cover::some;  // positions at opposite ends of int64
        }
        const std::int64_t seen_low = left_ < 0 ? low : std::max(low, -left_);
        const std::int64_t seen_high = right_ < 0 ? high : std::min(high, right_);
        if (seen_low > seen_high) return Cover::none;
        const auto below_high = static_cast<std::uint64_t>(floor_mod(seen_high, step_));  // to the nearest multiple
        if (count_between(seen_low, seen_high) < below_high) return Cover::none;
        const bool clipped = seen_low != low || seen_high != high;
        return !clipped && (step_ == 1 || low == high) ? Cover::all : Cover::some;
    }

    void row(std::int64_t, std::int64_t, std::int64_t query, std::int64_t key_begin, std::int64_t key_end,
             std::uint8_t* allowed) const override {
        const Row keys{key_begin, key_end, allowed};
        keys.fill(0);
        if (step_ == 1) return keys.allow(first(query), last(query));
        const std::int64_t seen_first = std::max(first(query), key_begin);
        const std::int64_t seen_last = std::min(last(query), key_end - 1);
        if (seen_first > seen_last) return;
        // Unsigned, so that stepping past the last key cannot overflow.
        const auto step = static_cast<std::uint64_t>(step_);
        const std::int64_t to_multiple = floor_mod(query, step_) - floor_mod(seen_first, step_);
        const std::uint64_t stop = count_between(key_begin, seen_last) + 1;
        for (std::uint64_t n = count_between(key_begin, seen_first) +
                               static_cast<std::uint64_t>(to_multiple < 0 ? to_multiple + step_ : to_multiple);
             n < stop; n += step) {
            allowed[n] = 1;
        }
    }

    std::string describe(Lists) const override { return name_; }
    void write(PatternWriter& program) const override { program.write(PatternCode::band, {left_, right_, step_}); }
    bool narrow_band(std::int64_t& left, std::int64_t& right) const override {
        if (step_ != 1) return false;
        if (left_ >= 0) left = left < 0 ? left_ : std::min(left, left_);
        if (right_ >= 0) right = right < 0 ? right_ : std::min(right, right_);
        return true;
    }

private:
    std::int64_t first(std::int64_t query) const { return left_ < 0 ? lowest : saturating_sub(query, left_); }
    std::int64_t last(std::int64_t query) const { return right_ < 0 ? highest : saturating_add(query, right_); }
    /// Not (query - key) % step, which may overflow.
    bool same_residue(std::int64_t query, std::int64_t key) const {
        return floor_mod(query, step_) == floor_mod(key, step_);
    }

    std::int64_t left_;
    std::int64_t right_;
    std::int64_t step_;
    std::string name_;
};

/// j < lengths[b]
class Lengths final : public Pattern::Node {
public:
    Lengths(std::vector<std::int64_t> lengths, std::string name)
        : lengths_(std::move(lengths)), name_(std::move(name)) {}

    bool allows(std::int64_t batch, std::int64_t, std::int64_t, std::int64_t key) const override {
        return key < end(batch);
    }
    Cover cover(const PatternTile& tile) const override {
        const std::int64_t length = end(tile.batch);
        if (tile.key_begin >= length) return Cover::none;
        return tile.key_end <= length ? Cover::all : Cover::some;
    }
    void row(std::int64_t batch, std::int64_t, std::int64_t, std::int64_t key_begin, std::int64_t key_end,
             std::uint8_t* allowed) const override {
        const Row keys{key_begin, key_end, allowed};
        keys.fill(0);
        if (end(batch) > lowest) keys.allow(lowest, end(batch) - 1);
    }
    std::string describe(Lists lists) const override { return concat(name_, "(", list_numbers(lengths_, lists), ")"); }
    void write(PatternWriter& program) const override { program.write(PatternCode::lengths, lengths_); }
    void check(const char* function, std::int64_t batches, std::int64_t) const override {
        check_batches(function, concat("lengths of ", name_), lengths_.size(), batches);
    }

private:
    /// A batch entry without a length sees nothing.
    std::int64_t end(std::int64_t batch) const {
        const std::int64_t* length = entry_of(lengths_, batch);
        return length != nullptr ? *length : lowest;
    }

    std::vector<std::int64_t> lengths_;
    std::string name_;
};

/// Same block of stride, or one of the last `summary` columns of any block.
class Fixed final : public Pattern::Node {
public:
    Fixed(std::int64_t stride, std::int64_t summary) : stride_(stride), summary_(summary) {}

    bool allows(std::int64_t, std::int64_t, std::int64_t query, std::int64_t key) const override {
        return is_summary(key) || floor_div(query, stride_) == floor_div(key, stride_);
    }

    /// Exact. Tile edges below are inclusive.
    Cover cover(const PatternTile& tile) const override {
        const std::int64_t first_key = tile.key_begin;
        const std::int64_t last_key = tile.key_end - 1;
        const std::int64_t first_block = floor_div(tile.query_begin, stride_);
        const std::int64_t last_block = floor_div(tile.query_end - 1, stride_);
        if (all_summary(first_key, last_key)) return Cover::all;
        if (first_block == last_block) {
            // Keys inside the queries' block are seen anyway; those before and after it have to be summaries.
            const std::int64_t block_first = saturating_sub(tile.query_begin, floor_mod(tile.query_begin, stride_));
            const std::int64_t block_last = last_of_block(tile.query_begin);
            const bool before = first_key >= block_first || all_summary(first_key, std::min(last_key, block_first - 1));
            const bool after = last_key <= block_last || all_summary(std::max(first_key, block_last + 1), last_key);
            if (before && after) return Cover::all;
        }
        const std::int64_t key_block = floor_div(first_key, stride_);
        // A stretch of keys without a summary ends before the last columns of the block it starts in.
        const bool no_summary = key_block == floor_div(last_key, stride_) && !is_summary(last_key);
        const bool shares_block = first_block <= floor_div(last_key, stride_) && key_block <= last_block;
        return no_summary && !shares_block ? Cover::none : Cover::some;
    }

    void row(std::int64_t, std::int64_t, std::int64_t query, std::int64_t key_begin, std::int64_t key_end,
             std::uint8_t* allowed) const override {
        const Row keys{key_begin, key_end, allowed};
        keys.fill(0);
        keys.allow(saturating_sub(query, floor_mod(query, stride_)), last_of_block(query));
        for (std::int64_t key = key_begin;;) {
            const std::int64_t to_summary = stride_ - summary_ - floor_mod(key, stride_);
            const std::int64_t last = last_of_block(key);
            keys.allow(saturating_add(key, std::max(to_summary, std::int64_t{0})), last);
            if (last >= key_end - 1) return;
            key = last + 1;
        }
    }

    std::string describe(Lists) const override { return concat("fixed(", stride_, ", ", summary_, ")"); }
    void write(PatternWriter& program) const override { program.write(PatternCode::fixed, {stride_, summary_}); }

private:
    bool is_summary(std::int64_t key) const { return floor_mod(key, stride_) >= stride_ - summary_; }
    bool all_summary(std::int64_t first, std::int64_t last) const {
        return summary_ == stride_ || (is_summary(first) && floor_div(first, stride_) == floor_div(last, stride_));
    }
    std::int64_t last_of_block(std::int64_t position) const {
        return saturating_add(position, stride_ - 1 - floor_mod(position, stride_));
    }

    std::int64_t stride_;
    std::int64_t summary_;
};

Pattern lengths_pattern(const char* function, const char* name, std::vector<std::int64_t> lengths) {
    expect_none_negative(function, "lengths", lengths);
    return pattern_of(std::make_shared<Lengths>(std::move(lengths), name));
}

std::string call(const char* name, std::initializer_list<std::int64_t> arguments) {
    return concat(name, "(", list_numbers(arguments, Pattern::Node::Lists::all), ")");
}

/// count * step positions away; a reach that int64 cannot hold is unlimited.
std::int64_t reach(std::int64_t count, std::int64_t step) {
    std::int64_t product = 0;
    return count < 0 || __builtin_mul_overflow(count, step, &product) ? -1 : product;
}

}  // namespace

namespace patterns {

Pattern causal() { return pattern_of(std::make_shared<Band>(-1, 0, 1, "causal")); }

Pattern window(std::int64_t left, std::int64_t right) {
    expect_at_least("patterns::window", "left", left, -1);
    expect_at_least("patterns::window", "right", right, -1);
    return pattern_of(std::make_shared<Band>(left, right, 1, call("window", {left, right})));
}

Pattern padding(std::vector<std::int64_t> lengths) {
    return lengths_pattern("patterns::padding", "padding", std::move(lengths));
}

Pattern prefix(std::vector<std::int64_t> lengths) {
    return lengths_pattern("patterns::prefix", "prefix", std::move(lengths));
}

Pattern strided(std::int64_t stride) {
    expect_at_least("patterns::strided", "stride", stride, 1);
    return pattern_of(std::make_shared<Band>(-1, -1, stride, call("strided", {stride})));
}

Pattern fixed(std::int64_t stride, std::int64_t summary) {
    expect_at_least("patterns::fixed", "stride", stride, 1);
    if (summary < 1 || summary > stride) {
        refuse("patterns::fixed", "summary", concat("1 to ", stride, " (stride)"), concat(summary));
    }
    return pattern_of(std::make_shared<Fixed>(stride, summary));
}

Pattern dilated(std::int64_t left, std::int64_t right, std::int64_t dilation) {
    expect_at_least("patterns::dilated", "left", left, -1);
    expect_at_least("patterns::dilated", "right", right, -1);
    expect_at_least("patterns::dilated", "dilation", dilation, 1);
    return pattern_of(std::make_shared<Band>(reach(left, dilation), reach(right, dilation), dilation,
                                             call("dilated", {left, right, dilation})));
}

}  // namespace patterns
}  // namespace heed
