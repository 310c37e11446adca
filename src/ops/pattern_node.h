#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <heed/pattern.h>

#include "base/access.h"
#include "base/refuse.h"
#include "kernel/pattern_program.h"

namespace heed {

/// What a pattern is made of. Nodes never change after construction, so patterns share them freely between
/// copies and threads. Pattern answers for the absent node and for empty tiles and rows; nodes never see those.
struct HEED_INTERNAL Pattern::Node {
    enum class Kind : std::uint8_t { leaf, both, either };

    explicit Node(Kind node_kind = Kind::leaf) : kind(node_kind) {}
    Node(const Node&) = delete;
    Node& operator=(const Node&) = delete;
    virtual ~Node() = default;

    virtual bool allows(std::int64_t batch, std::int64_t head, std::int64_t query, std::int64_t key) const = 0;
    virtual Cover cover(const PatternTile& tile) const = 0;
    virtual void row(std::int64_t batch, std::int64_t head, std::int64_t query, std::int64_t key_begin,
                     std::int64_t key_end, std::uint8_t* allowed) const = 0;
    /// How much of its lists a text shows.
    enum class Lists : std::uint8_t { few, all };
    virtual std::string describe(Lists lists) const = 0;
    /// The same as allows(), as instructions for a device.
    virtual void write(PatternWriter& program) const = 0;
    virtual void check(const char* /*function*/, std::int64_t /*batches*/, std::int64_t /*heads*/) const {}
    /// Is it i - left <= j <= i + right and nothing else? Then narrows the two, of which -1 is unlimited.
    virtual bool narrow_band(std::int64_t& /*left*/, std::int64_t& /*right*/) const { return false; }
    /// The parts of `both`; of another node none.
    virtual std::span<const std::shared_ptr<const Node>> parts() const { return {}; }

    const Kind kind;
};

/// Takes the bands (causal, window) out of what a pattern asks for together, narrowing left and right by them: kernels
/// know bands by heart. Returns the rest, absent where nothing is left.
Pattern without_bands(const Pattern& pattern, std::int64_t& left, std::int64_t& right);

/// Behind a pattern; null where it is absent.
inline const std::shared_ptr<const Pattern::Node>& node_of(const Pattern& pattern) {
    return detail::Access::node(pattern);
}
inline Pattern pattern_of(std::shared_ptr<const Pattern::Node> node) {
    return detail::Access::pattern<Pattern>(std::move(node));
}

namespace pattern_detail {

constexpr std::int64_t lowest = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t highest = std::numeric_limits<std::int64_t>::max();

/// Rounds towards minus infinity, so that blocks and residues go on evenly below position 0. divisor > 0.
constexpr std::int64_t floor_mod(std::int64_t value, std::int64_t divisor) {
    const std::int64_t rest = value % divisor;
    return rest < 0 ? rest + divisor : rest;
}
constexpr std::int64_t floor_div(std::int64_t value, std::int64_t divisor) {
    return value / divisor - (value % divisor < 0 ? 1 : 0);
}

/// Positions come from the caller and may be anything; bounds stop at the ends of int64 instead of wrapping.
inline std::int64_t saturating_add(std::int64_t a, std::int64_t b) {
    std::int64_t sum = 0;
    return __builtin_add_overflow(a, b, &sum) ? (b < 0 ? lowest : highest) : sum;
}
inline std::int64_t saturating_sub(std::int64_t a, std::int64_t b) {
    std::int64_t difference = 0;
    return __builtin_sub_overflow(a, b, &difference) ? (b < 0 ? highest : lowest) : difference;
}

/// Number of positions in [begin, end), begin <= end, which int64 might not hold.
constexpr std::uint64_t count_between(std::int64_t begin, std::int64_t end) {
    return static_cast<std::uint64_t>(end) - static_cast<std::uint64_t>(begin);
}

/// The keys of one row as kernels want them: a byte for each of [begin, end).
struct Row {
    std::int64_t begin;
    std::int64_t end;
    std::uint8_t* allowed;

    std::size_t size() const { return count_between(begin, end); }
    void fill(std::uint8_t value) const { std::memset(allowed, value, size()); }
    /// Ones for those of [first, last], last included, that the row holds; the others stay.
    void allow(std::int64_t first, std::int64_t last) const {
        first = std::max(first, begin);
        last = std::min(last, end - 1);
        if (first <= last) std::memset(allowed + count_between(begin, first), 1, count_between(first, last) + 1);
    }
};

/// One string of texts and whole numbers. (`"literal" + std::string()` makes GCC 12 warn of overlapping copies
/// that are none: its bug 105651.)
template <class... Parts>
std::string concat(const Parts&... parts) {
    std::string text;
    const auto append = [&text](const auto& part) {
        if constexpr (std::is_integral_v<std::remove_cvref_t<decltype(part)>>) {
            text += std::to_string(part);
        } else {
            text += part;
        }
    };
    (append(parts), ...);
    return text;
}

inline void expect_at_least(const char* function, const char* argument, std::int64_t value, std::int64_t minimum) {
    if (value < minimum) { refuse(function, argument, concat("at least ", minimum), concat(value)); }
}

inline void expect_none_negative(const char* function, const char* argument, const std::vector<std::int64_t>& list) {
    for (std::size_t n = 0; n < list.size(); ++n) {
        if (list[n] < 0) { refuse(function, concat(argument, "[", n, "]"), "at least 0", concat(list[n])); }
    }
}

/// "1, 2, 3", and for long lists, unless all is asked for, the first few with the number of all.
inline std::string list_numbers(const std::vector<std::int64_t>& numbers, Pattern::Node::Lists lists) {
    const std::size_t shown = lists == Pattern::Node::Lists::all ? numbers.size() : 8;
    std::string text;
    for (std::size_t n = 0; n < std::min(shown, numbers.size()); ++n) {
        text += n == 0 ? "" : ", ";
        text += std::to_string(numbers[n]);
    }
    if (numbers.size() > shown) text += concat(", ... ", numbers.size(), " in all");
    return text;
}

/// Entry of a per-batch list for `batch`, where a list of one serves every batch entry; null where there is none.
template <class T>
const T* entry_of(const std::vector<T>& list, std::int64_t batch) {
    if (list.size() == 1) return list.data();
    if (batch < 0 || static_cast<std::uint64_t>(batch) >= list.size()) return nullptr;
    return list.data() + batch;
}

inline void check_batches(const char* function, const std::string& what, std::size_t entries, std::int64_t batches) {
    if (entries == 1 || entries == static_cast<std::uint64_t>(batches)) return;
    const std::string or_each = batches == 1 ? "" : concat(" or ", batches, ", one for each batch entry");
    refuse(function, "pattern: " + what, "1" + or_each, concat(entries));
}

}  // namespace pattern_detail
}  // namespace heed
