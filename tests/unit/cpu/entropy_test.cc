/// The vectors of cpu/entropy against std::log.
#include "cpu/entropy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace heed::testing {
namespace {

template <class Weight>
class Entropy : public ::testing::Test {};
using Weights = ::testing::Types<float, double>;
TYPED_TEST_SUITE(Entropy, Weights);

template <class Weight>
double expected(const std::vector<Weight>& weights) {
    double sum = 0;
    for (const double w : weights) { sum -= w > 0 ? w * std::log(w) : 0; }
    return sum;
}

TYPED_TEST(Entropy, EqualsTheSumOfLogarithmsAtEveryLength) {
    std::mt19937 random(7);
    std::uniform_real_distribution<double> exponent(-60, 0);
    for (std::size_t count = 0; count < 200; ++count) {
        std::vector<TypeParam> weights(count);
        for (TypeParam& w : weights) { w = static_cast<TypeParam>(std::exp(exponent(random))); }
        if (count > 3) { weights[count / 2] = 0; }
        const double sum = expected(weights);
        ASSERT_NEAR(cpu::entropy(weights.data(), static_cast<std::int64_t>(count)), sum, 1e-14 * sum) << count;
    }
}

TYPED_TEST(Entropy, EachLogarithmIsRight) {
    // One weight at a time, over every exponent, next to powers of two and to where the mantissa is folded.
    const double mantissas[] = {1, 1 + 1e-7, 1.25, 1.4142135, 1.4142136, 1.75, 2 - 1e-7};
    for (int e = std::numeric_limits<TypeParam>::min_exponent; e < 2; ++e) {
        for (const double m : mantissas) {
            const std::vector<TypeParam> one = {static_cast<TypeParam>(std::ldexp(m, e))};
            const double sum = expected(one);
            ASSERT_NEAR(cpu::entropy(one.data(), 1), sum, 1e-14 * std::abs(sum)) << m << " * 2^" << e;
        }
    }
}

TYPED_TEST(Entropy, SpecialWeights) {
    const TypeParam zero[] = {0, 0, 0}, one[] = {0, 1, 0};
    EXPECT_EQ(cpu::entropy(zero, 3), 0);
    EXPECT_EQ(cpu::entropy(one, 3), 0);
    EXPECT_EQ(cpu::entropy(one, 0), 0);
    const TypeParam tiny[] = {std::numeric_limits<TypeParam>::denorm_min()};
    EXPECT_NEAR(cpu::entropy(tiny, 1), 0, 1e-40);
    for (int at = 0; at < 11; ++at) {
        std::vector<TypeParam> weights(11, TypeParam{0.0625});
        weights[static_cast<std::size_t>(at)] = std::numeric_limits<TypeParam>::quiet_NaN();
        EXPECT_TRUE(std::isnan(cpu::entropy(weights.data(), 11))) << at;
    }
}

}  // namespace
}  // namespace heed::testing
