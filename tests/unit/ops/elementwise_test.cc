#include <heed/elementwise.h>

#include "unit/ops/layer_ops_testing.h"

namespace heed::testing {

TEST(Elementwise, AddsMultipliesScalesAndConvertsEveryType) {
    for (const DType dtype : all_floats()) {
        for (const Shape& shape : {Shape{1}, Shape{3, 2, 5}, Shape{2, 70}, Shape{20000}}) {
            const Tensor a = random(dtype, shape, 1), b = random(dtype, shape, 2);
            const Scattered strange_a(a), strange_b(b);
            Tensor sum(dtype, shape), product(dtype, shape), scaled(dtype, shape), back(DType::f32, shape);
            Scattered strange(dtype, shape);
            add(test_context(), a, b, sum, {.alpha = 2, .beta = -0.5});
            add(test_context(), strange_a.view, strange_b.view, strange.view, {.alpha = 2, .beta = -0.5});
            expect_same(strange.view, sum);
            multiply(test_context(), a, b, product);
            scale(test_context(), a, -3, scaled);
            convert(test_context(), strange_a.view, back);
            for (std::int64_t n = 0; n < shape.elements(); ++n) {
                const double x = get(a, n), y = get(b, n), tolerance = tolerance_of(dtype);
                ASSERT_NEAR(get(sum, n), 2 * x - 0.5 * y, tolerance * (1 + std::abs(2 * x - 0.5 * y)));
                ASSERT_NEAR(get(product, n), x * y, tolerance * (1 + std::abs(x * y)));
                ASSERT_NEAR(get(scaled, n), -3 * x, tolerance * (1 + std::abs(x) * 3));
                ASSERT_EQ(get(back, n), static_cast<double>(static_cast<float>(x)));
            }
            fill(test_context(), strange.view, 0.25);
            for (std::int64_t n = 0; n < shape.elements(); ++n) { ASSERT_EQ(get(strange.view, n), 0.25); }
        }
    }
}

TEST(Elementwise, ConvertingRoundsToNearestEven) {
    Tensor x(DType::f32, {5}), out(DType::bf16, {5});
    const double numbers[] = {1 + 1.0 / 256, 1 + 3.0 / 256, -1 - 1.0 / 256, std::nan(""), 3.4e38};
    for (int n = 0; n < 5; ++n) { set(x, n, numbers[n]); }
    convert(test_context(), x, out);
    EXPECT_EQ(get(out, 0), 1);
    EXPECT_EQ(get(out, 1), 1 + 4.0 / 256);
    EXPECT_EQ(get(out, 2), -1);
    EXPECT_TRUE(std::isnan(get(out, 3)));
    EXPECT_TRUE(std::isinf(get(out, 4)));
}

TEST(Elementwise, RepeatsAlongMissingAxesAndSumsThemAgain) {
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
        const Tensor x = random(dtype, {4, 3, 5}, 1), position = random(dtype, {3, 5}, 2), bias = random(dtype, {5}, 3);
        Tensor out(dtype, {4, 3, 5});
        add(test_context(), x, position, out);
        for (std::int64_t n = 0; n < 60; ++n) {
            ASSERT_NEAR(get(out, n), get(x, n) + get(position, n % 15), 4 * tolerance_of(dtype));
        }
        multiply(test_context(), x, bias, out);
        for (std::int64_t n = 0; n < 60; ++n) {
            ASSERT_NEAR(get(out, n), get(x, n) * get(bias, n % 5), 8 * tolerance_of(dtype));
        }
        Tensor dposition = random(dtype, {3, 5}, 4), dbias(dtype, {5});
        const Tensor before = dposition.clone();
        sum_leading(test_context(), x, dposition, {.factor = 2, .accumulate = true});
        sum_leading(test_context(), Scattered(x).view, dbias);
        for (std::int64_t n = 0; n < 15; ++n) {
            double sum = get(before, n);
            for (std::int64_t b = 0; b < 4; ++b) { sum += 2 * get(x, b * 15 + n); }
            ASSERT_NEAR(get(dposition, n), sum, 8 * tolerance_of(dtype) * (1 + std::abs(sum)));
        }
        for (std::int64_t c = 0; c < 5; ++c) {
            double sum = 0;
            for (std::int64_t b = 0; b < 12; ++b) { sum += get(x, b * 5 + c); }
            ASSERT_NEAR(get(dbias, c), sum, 8 * tolerance_of(dtype) * (1 + std::abs(sum)));
        }
        double total = 0;
        for (std::int64_t n = 0; n < 60; ++n) { total += get(x, n); }
        EXPECT_NEAR(sum(test_context(), x), total, 1e-9);
    }
}

TEST(Elementwise, SumsAreTheSameForAnyNumberOfThreads) {
    const Tensor x = random(DType::f32, {700, 130}, 1);
    Context alone(1), several(5);
    Tensor a(DType::f32, {130}), b(DType::f32, {130});
    sum_leading(alone, x, a);
    sum_leading(several, x, b);
    expect_same(a, b);
    EXPECT_EQ(sum(alone, x), sum(several, x));
}

TEST(Elementwise, RefusesWhatDoesNotFit) {
    Tensor x(DType::f32, {2, 3}), y(DType::f32, {2}), out(DType::f32, {2, 3});
    EXPECT_EQ(error_text([&] { add(test_context(), x, y, out); }),
              "[add] b: expected [2, 3] or its last axes, got [2]");
    EXPECT_EQ(error_text([&] { scale(test_context(), x, std::nan(""), out); }),
              "[scale] alpha: expected a finite number, got nan");
    EXPECT_EQ(error_text([&] { sum_leading(test_context(), x, x); }),
              "[sum_leading] out: expected memory apart from x, got an overlap");
}

}  // namespace heed::testing
