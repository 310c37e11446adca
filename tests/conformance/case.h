#pragma once
/// The table: every option of attention and every hostile shape, one line a case.
///
/// An axis is an option with its values, written as they appear in a case's description; a case takes one value of
/// each. The table holds a few thousand cases drawn at random from the whole product, from a fixed seed, and
/// then as many more as are needed for every pair of values of different axes to appear together somewhere.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace heed::conformance {

enum class Axis : int {
    dtype,
    out_dtype,
    lse_dtype,
    layout,
    heads,
    batch,
    queries,
    keys,
    head_size,
    value_size,
    scale,
    causal,
    align,
    window,
    allow,
    pattern,
    bias,
    bias_dtype,
    alibi,
    softcap,
    sinks,
    lengths,
    positions,
    dropout,
    dlse,
    inputs,
    count
};
constexpr int axes = static_cast<int>(Axis::count);

struct AxisInfo {
    const char* name;
    std::vector<std::string_view> values;
};
const AxisInfo& info(Axis axis);

struct Case {
    int number = 0;
    std::array<int, axes> choice{};

    std::string_view operator[](Axis axis) const {
        return info(axis).values[static_cast<std::size_t>(choice[static_cast<std::size_t>(axis)])];
    }
    std::int64_t integer(Axis axis) const;
    /// H and G of "4/2".
    std::int64_t query_heads() const;
    std::int64_t kv_heads() const;
    /// Multiplications of the forward pass: what a case costs.
    std::int64_t cost() const;
    /// One line that says everything, options that are off left out.
    std::string describe() const;
};

const std::vector<Case>& all_cases();

/// Pairs of values of different axes that some case has, and all there are.
struct Coverage {
    std::int64_t covered = 0;
    std::int64_t pairs = 0;
};
Coverage pair_coverage(const std::vector<Case>& cases);

}  // namespace heed::conformance
