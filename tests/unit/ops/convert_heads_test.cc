#include <heed/attention.h>
#include <heed/convert_heads.h>
#include <heed/matmul.h>

#include "unit/ops/op_testing.h"

namespace heed::testing {
namespace {

TEST(PoolHeads, MeansOfEachGroup) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
        const Tensor weight = random(dtype, {6 * 2, 5}, 1), bias = random(dtype, {6 * 2}, 2);
        for (const std::int64_t groups : {6, 3, 2, 1}) {
            Scattered pooled(dtype, {groups * 2, 5});
            Tensor pooled_bias(dtype, {groups * 2});
            pool_heads(weight, 6, groups, pooled.view);
            pool_heads(bias, 6, groups, pooled_bias);
            const std::int64_t heads = 6 / groups;
            for (std::int64_t row = 0; row < groups * 2; ++row) {
                double bias_mean = 0;
                for (std::int64_t h = 0; h < heads; ++h) {
                    bias_mean += get(bias, (row / 2 * heads + h) * 2 + row % 2) / static_cast<double>(heads);
                }
                EXPECT_NEAR(get(pooled_bias, row), bias_mean, 0x1p-8);
                for (std::int64_t column = 0; column < 5; ++column) {
                    double mean = 0;
                    for (std::int64_t h = 0; h < heads; ++h) {
                        mean += get(weight, ((row / 2 * heads + h) * 2 + row % 2) * 5 + column) /
                                static_cast<double>(heads);
                    }
                    EXPECT_NEAR(get(pooled.view, row * 5 + column), mean,
                                dtype == DType::f32 || dtype == DType::f64 ? 1e-6 : 0x1p-8);
                }
            }
            if (groups == 6) { expect_same(pooled.view, weight); }
        }
    }
}

TEST(PoolHeads, EqualHeadsGiveTheSameAttention) {
    Context context(1);
    const std::int64_t size = 4, in = 10, length = 7;
    const Tensor grouped = random(DType::f32, {2 * size, in}, 1), x = random(DType::f32, {length, in}, 2),
                 q = random(DType::f32, {1, 6, length, size}, 3);
    Tensor repeated(DType::f32, {6 * size, in}), pooled(DType::f32, {2 * size, in});
    for (std::int64_t n = 0; n < repeated.elements(); ++n) {
        const std::int64_t h = n / (size * in);
        set(repeated, n, get(grouped, (h / 3) * size * in + n % (size * in)));
    }
    pool_heads(repeated, 6, 2, pooled);
    expect_same(pooled, grouped);
    const auto attended = [&](const Tensor& weight, std::int64_t heads) {
        Tensor k(DType::f32, {length, heads * size}), out(DType::f32, {1, 6, length, size});
        matmul(context, x, weight.view().permute({1, 0}), k);
        const View keys(k.as<float>(), {1, heads, length, size}, {0, size, heads * size, 1});
        AttentionOptions options;
        options.causal = true;
        attend(context, q, keys, keys, out, options);
        return out;
    };
    expect_near(attended(pooled, 2), attended(repeated, 6), 1e-6);
}

TEST(PoolHeads, Errors) {
    const Tensor weight(DType::f32, {12, 5}), cube(DType::f32, {12, 5, 1});
    Tensor pooled(DType::f32, {4, 5});
    const auto text = [&](const View& w, std::int64_t heads, std::int64_t groups, const MutableView& to) {
        return error_text([&] { pool_heads(w, heads, groups, to); });
    };
    EXPECT_EQ(text({}, 6, 2, pooled), "[pool_heads] weight: expected a tensor [H*d, in] or [H*d], got none");
    EXPECT_EQ(text(cube, 6, 2, pooled), "[pool_heads] weight: expected [H*d, in] or [H*d], got [12, 5, 1]");
    EXPECT_EQ(text(weight, 5, 1, pooled), "[pool_heads] heads: expected a divisor of the 12 rows of weight, got 5");
    EXPECT_EQ(text(weight, 0, 1, pooled), "[pool_heads] heads: expected a divisor of the 12 rows of weight, got 0");
    EXPECT_EQ(text(weight, 6, 4, pooled), "[pool_heads] kv_heads: expected a divisor of 6 heads, got 4");
    EXPECT_EQ(text(weight, 6, 3, pooled), "[pool_heads] pooled: expected [6, 5], got [4, 5]");
    Tensor same(DType::f32, {12, 5});
    EXPECT_EQ(text(same, 6, 6, same), "[pool_heads] pooled: expected memory apart from weight, got an overlap");
}

}  // namespace
}  // namespace heed::testing
