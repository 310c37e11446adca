/// The backward pass in bf16, where weights and gradients are made in pairs, against the reference.

#include "support/sample.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include <heed/heed.h>

namespace heed::testing {
namespace {

Tensor bf16_numbers(Shape shape, unsigned seed) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal;
    Tensor t(DType::f32, shape);
    for (std::int64_t n = 0; n < t.elements(); ++n) { t.as<float>()[n] = normal(generator); }
    return t.to(DType::bf16);
}

struct Case {
    Tensor q, k, v, dout, out, lse;

    Case(Context& context, std::int64_t rows, std::int64_t keys, std::int64_t size, AttentionOptions options,
         DType lse_type = DType::f32)
        : q(bf16_numbers({1, 4, rows, size}, 1)),
          k(bf16_numbers({1, 2, keys, size}, 2)),
          v(bf16_numbers({1, 2, keys, size}, 3)),
          dout(bf16_numbers({1, 4, rows, size}, 4)),
          out(DType::bf16, {1, 4, rows, size}),
          lse(lse_type, {1, 4, rows}) {
        options.kernel = "reference";
        attend(context, q, k, v, {.out = out, .lse = lse}, options);
    }
};

struct Gradients {
    Tensor dq, dk, dv;
    explicit Gradients(const Case& c)
        : dq(DType::f32, c.q.shape()), dk(DType::f32, c.k.shape()), dv(DType::f32, c.v.shape()) {}
};

Gradients gradients_of(Context& context, const Case& c, const AttentionOptions& options) {
    Gradients to(c);
    AttentionGradients views;
    views.dq = to.dq.view();
    views.dk = to.dk.view();
    views.dv = to.dv.view();
    attend_backward(context, {.q = c.q, .k = c.k, .v = c.v, .out = c.out, .lse = c.lse, .dout = c.dout}, views,
                    options);
    return to;
}

/// The largest difference, in units of the largest number expected.
double error_of(const Tensor& a, const Tensor& expected) {
    double most = 0;
    double largest = 0;
    for (std::int64_t n = 0; n < a.elements(); ++n) {
        const double off =
            std::abs(static_cast<double>(a.as<float>()[n]) - static_cast<double>(expected.as<float>()[n]));
        most = std::isnan(off) ? std::numeric_limits<double>::infinity() : std::max(most, off);
        largest = std::max(largest, std::abs(static_cast<double>(expected.as<float>()[n])));
    }
    return most / largest;
}

TEST(BackwardInPairs, IsAsGoodAsBf16) {
    Context context(2);
    Sample sample((test_stride() + 2) / 3);
    // Rows and keys that fill tiles and that do not; odd ones; one, two, three and four vectors of rows.
    for (const std::int64_t rows : {13, 31, 47, 131}) {
        for (const std::int64_t keys : {47, 301}) {
            std::vector<AttentionOptions> variants(5);
            variants[1].causal = true;
            variants[2].dropout = {.p = 0.25, .seed = 0};
            variants[3].causal = true;
            variants[3].dropout = {.p = 0.25, .seed = 0};
            variants[4].window = {.left = 37, .right = 5};
            for (std::size_t n = 0; n < variants.size(); ++n) {
                if (!sample.takes()) { continue; }
                const Case c(context, rows, keys, 64, variants[n], n == 0 ? DType::f64 : DType::f32);
                const Gradients got = gradients_of(context, c, variants[n]);
                variants[n].kernel = "reference";
                const Gradients expected = gradients_of(context, c, variants[n]);
                for (const auto tensor : {&Gradients::dq, &Gradients::dk, &Gradients::dv}) {
                    EXPECT_LE(error_of(got.*tensor, expected.*tensor), 0x1p-7)
                        << rows << " rows, " << keys << " keys, variant " << n;
                }
            }
        }
    }
}

TEST(BackwardInPairs, WhatSeesOneKeyHasNoGradientOfScores) {
    // out is v then, and dout . out must be the very number that dout . v is.
    Context context(1);
    const Case c(context, 64, 1, 64, {});
    const Gradients got = gradients_of(context, c, {});
    for (std::int64_t n = 0; n < got.dq.elements(); ++n) { ASSERT_EQ(got.dq.as<float>()[n], 0.F) << n; }
    for (std::int64_t n = 0; n < got.dk.elements(); ++n) { ASSERT_EQ(got.dk.as<float>()[n], 0.F) << n; }
}

TEST(BackwardInPairs, RowsWithNaNKeepToThemselves) {
    // The last of an odd number of rows: its partner in a pair is none of the tensor's.
    Context context(1);
    Case c(context, 31, 192, 64, {});
    const Gradients clean = gradients_of(context, c, {});
    const std::int64_t last = (4 * 31 - 1) * 64;
    for (std::int64_t e = 0; e < 64; ++e) { c.q.as<std::uint16_t>()[last + e] = 0x7fc0; }
    const Gradients got = gradients_of(context, c, {});
    for (std::int64_t n = 0; n < last; ++n) { ASSERT_EQ(got.dq.as<float>()[n], clean.dq.as<float>()[n]) << n; }
    EXPECT_TRUE(std::isnan(got.dq.as<float>()[last]));
}

}  // namespace
}  // namespace heed::testing
