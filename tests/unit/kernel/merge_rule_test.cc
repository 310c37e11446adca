/// The rule by which key splits, sinks, shared prefixes and ranks are merged.

#include "kernel/merge_rule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace heed {
namespace {

constexpr double infinite = std::numeric_limits<double>::infinity();

double natural(double x) { return std::exp(x); }

/// The largest of some scores, the sum of exp(score - largest), and of that times the score.
struct Part {
    double largest = -infinite, sum = 0, values = 0;
};

Part whole(const std::vector<double>& scores) {
    Part part;
    for (const double x : scores) { part.largest = merged_logarithm(part.largest, x); }
    for (const double x : scores) {
        const double weight = merge_weight(x, part.largest, natural);
        part.sum += weight;
        part.values += weight * x;
    }
    return part;
}

Part merged(const Part& a, const Part& b) {
    Part part{.largest = merged_logarithm(a.largest, b.largest)};
    for (const Part& each : {a, b}) {
        const double weight = merge_weight(each.largest, part.largest, natural);
        part.sum += weight * each.sum;
        part.values += weight * each.values;
    }
    return part;
}

TEST(MergeRule, PartsOfASoftmaxMakeTheWhole) {
    const std::vector<double> scores = {0.5, -3, 700, 699.25, -800, 12};
    const Part expected = whole(scores);
    for (std::size_t cut = 0; cut <= scores.size(); ++cut) {
        const auto middle = scores.begin() + static_cast<std::ptrdiff_t>(cut);
        const Part got = merged(whole({scores.begin(), middle}), whole({middle, scores.end()}));
        EXPECT_EQ(got.largest, expected.largest) << cut;
        EXPECT_NEAR(got.sum, expected.sum, 1e-15) << cut;
        EXPECT_NEAR(got.values / got.sum, expected.values / expected.sum, 1e-12) << cut;
    }
}

TEST(MergeRule, WhatSawNothingCountsNothing) {
    EXPECT_EQ(merge_weight(-infinite, 3.0, natural), 0);
    EXPECT_EQ(merge_weight(-infinite, -infinite, natural), 0);  // not exp(NaN)
    EXPECT_EQ(merged_logarithm(-infinite, -infinite), -infinite);
    const Part nothing = merged({}, {});
    EXPECT_EQ(nothing.sum, 0);
}

TEST(MergeRule, NaNOfEitherPartStays) {
    const double nan = std::nan("");
    EXPECT_TRUE(std::isnan(merged_logarithm(nan, 1.0)));
    EXPECT_TRUE(std::isnan(merged_logarithm(1.0, nan)));
    EXPECT_TRUE(std::isnan(merged({.largest = nan, .sum = 1, .values = 1}, whole({2})).sum));
    EXPECT_TRUE(std::isnan(merged(whole({2}), {.largest = nan, .sum = 1, .values = 1}).sum));
}

}  // namespace
}  // namespace heed
