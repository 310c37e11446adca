#include <heed/log_decay.h>

#include "unit/ops/layer_ops_testing.h"

namespace heed::testing {
namespace {

double log_decay_of(double x, double rate) { return -std::exp(rate) * std::log1p(std::exp(x)); }

TEST(LogDecay, IsTheFormulaInEveryTypeAndLayout) {
    for (const DType dtype : all_floats()) {
        for (const std::int64_t each : {1, 5}) {
            const Shape shape{2, 7, 3 * each};
            const Tensor x = random(dtype, shape, 1), rate = random(dtype, {3}, 2);
            Tensor out(dtype, shape);
            Scattered strange(dtype, shape);
            log_decay(test_context(), x, rate, out);
            log_decay(test_context(), Scattered(x).view, rate, strange.view);
            expect_same(strange.view, out);
            for (std::int64_t n = 0; n < x.elements(); ++n) {
                const double expected = log_decay_of(get(x, n), get(rate, n % (3 * each) / each));
                ASSERT_NEAR(get(out, n), expected, 2 * tolerance_of(dtype) * (1 + std::abs(expected)));
            }
        }
    }
}

TEST(LogDecay, FarInputsNeitherOverflowNorVanish) {
    Tensor x(DType::f32, {4}), rate(DType::f32, {1}), out(DType::f32, {4}), dx(DType::f32, {4}), dout(DType::f32, {4});
    const double far[] = {800, -800, -80, 0};
    for (std::int64_t n = 0; n < 4; ++n) {
        set(x, n, far[n]);
        set(dout, n, 1);
    }
    log_decay(test_context(), x, rate, out);
    log_decay_backward(test_context(), x, rate, dout, dx, {});
    EXPECT_EQ(get(out, 0), -800);
    EXPECT_EQ(get(out, 1), 0);
    EXPECT_NEAR(get(out, 2) / -std::exp(-80.0), 1, 1e-4);
    EXPECT_EQ(get(dx, 0), -1);
    EXPECT_EQ(get(dx, 1), 0);
    EXPECT_EQ(get(dx, 3), -0.5);
}

TEST(LogDecay, GradientsAreThoseOfFiniteDifferences) {
    const Shape shape{5, 6};
    Tensor x = random(DType::f64, shape, 1), rate = random(DType::f64, {3}, 2);
    const Tensor dout = random(DType::f64, shape, 3);
    Tensor out(DType::f64, shape), dx(DType::f64, shape), drate(DType::f64, {3});
    log_decay_backward(test_context(), x, rate, dout, dx, drate);
    const auto loss = [&] {
        log_decay(test_context(), x, rate, out);
        double sum = 0;
        for (std::int64_t n = 0; n < out.elements(); ++n) { sum += get(out, n) * get(dout, n); }
        return sum;
    };
    const auto check = [&](Tensor& of, const Tensor& gradient) {
        for (std::int64_t n = 0; n < of.elements(); ++n) {
            const double before = get(of, n);
            set(of, n, before + 1e-5);
            const double up = loss();
            set(of, n, before - 1e-5);
            const double down = loss();
            set(of, n, before);
            ASSERT_NEAR(get(gradient, n), (up - down) / 2e-5, 1e-8) << n;
        }
    };
    check(x, dx);
    check(rate, drate);
    // In place of dout, and of an empty batch.
    Tensor same = Tensor::copy_of(dout.view());
    log_decay_backward(test_context(), x, rate, same, same, {});
    expect_same(same, dx);
    set(drate, 1, 5);
    const Tensor none(DType::f64, {0, 6});
    log_decay_backward(test_context(), none, rate, none, {}, drate);
    for (std::int64_t n = 0; n < 3; ++n) { EXPECT_EQ(get(drate, n), 0); }
}

TEST(LogDecay, WhatDoesNotFitIsRefused) {
    const Tensor x = random(DType::f32, {2, 6}, 1), rate = random(DType::f32, {4}, 2);
    Tensor out(DType::f32, {2, 6});
    try {
        log_decay(test_context(), x, rate, out);
        FAIL();
    } catch (const Error& error) {
        EXPECT_STREQ(error.what(), "[log_decay] rate: expected [N] with N a divisor of the 6 columns of x, got [4]");
    }
    EXPECT_THROW(log_decay(test_context(), x, Tensor(DType::f32, {}), out), Error);
    EXPECT_THROW(log_decay(test_context(), x, Tensor(DType::i32, {3}), out), Error);
    EXPECT_THROW(log_decay(test_context(), x, Tensor(DType::f32, {3}), Tensor(DType::f32, {6, 2})), Error);
}

}  // namespace
}  // namespace heed::testing
