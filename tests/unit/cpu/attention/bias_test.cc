/// A bias and nothing else, which bf16 adds at the end of the score product, against the reference: types and strides
/// of the bias, sizes that fill lines and register tiles and that do not, hidden keys, very low numbers, any scale.

#include "support/kernels.h"
#include "support/numbers.h"
#include "support/random.h"
#include "support/sample.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include <heed/heed.h>

namespace heed::testing {
namespace {

constexpr float lowest = std::numeric_limits<float>::lowest();

struct BiasSizes {
    std::int64_t heads, rows, keys, size;
};

/// out and, where asked for, the gradients of q and bias agree with the reference's.
void expect_like_reference(const BiasSizes& n, const Tensor& k, const View& bias, double scale, const std::string& what,
                           bool gradients = true) {
    const Tensor q = random_numbers({1, n.heads, n.rows, n.size}, 1).to(DType::bf16);
    const Tensor v = random_numbers({1, n.heads, n.keys, n.size}, 3).to(DType::bf16);
    const Tensor dout = random_numbers({1, n.heads, n.rows, n.size}, 5).to(DType::bf16);
    Context context(2);
    Tensor results[2][3];
    for (int reference = 0; reference < 2; ++reference) {
        AttentionOptions options;
        options.bias = bias;
        options.scale = scale;
        if (reference != 0) { options.kernel = "reference"; }
        Tensor out(DType::f32, q.shape()), lse(DType::f32, {1, n.heads, n.rows});
        attend(context, q, k, v, {.out = out, .lse = lse}, options);
        results[reference][0] = out.to(DType::f32);
        if (!gradients) { continue; }
        Tensor dq(DType::f32, q.shape()), dk(DType::f32, k.shape()), dv(DType::f32, v.shape());
        Tensor dbias(DType::f32, bias.shape());
        attend_backward(context, {.q = q, .k = k, .v = v, .out = out, .lse = lse, .dout = dout},
                        {.dq = dq, .dk = dk, .dv = dv, .dbias = dbias}, options);
        results[reference][1] = std::move(dq);
        results[reference][2] = std::move(dbias);
    }
    for (int r = 0; r < (gradients ? 3 : 1); ++r) {
        const Tensor& a = results[0][r];
        const Tensor& b = results[1][r];
        double largest = 1, most = 0;
        for (std::int64_t i = 0; i < a.elements(); ++i) {
            const double x = a.as<float>()[i], y = b.as<float>()[i];
            largest = std::max(largest, std::abs(y));
            most = std::isnan(x - y) ? std::numeric_limits<double>::infinity() : std::max(most, std::abs(x - y));
        }
        EXPECT_LE(most, 6 * 0x1p-9 * largest) << what << ", result " << r;
    }
}

std::string name_of(const BiasSizes& n) {
    return std::to_string(n.heads) + " heads, " + std::to_string(n.rows) + " rows, " + std::to_string(n.keys) +
           " keys of " + std::to_string(n.size);
}

constexpr BiasSizes bias_sizes[] = {{2, 64, 16, 64},   {1, 64, 15, 64},  {1, 130, 17, 64}, {3, 64, 200, 64},
                                    {1, 113, 401, 40}, {2, 70, 96, 128}, {1, 64, 223, 6}};

TEST(BiasInBf16, TypesAndStrides) {
    Sample sample((test_stride() + 2) / 3);
    for (const BiasSizes& n : bias_sizes) {
        const Tensor k = random_numbers({1, n.heads, n.keys, n.size}, 2).to(DType::bf16);
        for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
            if (!sample.takes()) { continue; }
            const Tensor each = random_numbers({1, n.heads, n.rows, n.keys}, 4).to(dtype);
            const Tensor shared = random_numbers({1, 1, n.rows, n.keys}, 4).to(dtype);
            const Tensor wide = random_numbers({1, n.heads, n.rows, n.keys + 7}, 4).to(dtype);
            const std::string what = name_of(n) + ", " + std::string(heed::name_of(dtype));
            expect_like_reference(n, k, each, 0.125, what + " each");
            expect_like_reference(n, k, shared, 0.125, what + " shared");
            expect_like_reference(n, k, View(wide).slice(3, 3, 3 + n.keys), 0.125, what + " from the fourth column on");
        }
    }
}

TEST(BiasInBf16, HiddenKeysAndRows) {
    for (const BiasSizes& n : bias_sizes) {
        Tensor k = random_numbers({1, n.heads, n.keys, n.size}, 2);
        const std::int64_t bad_key = n.keys / 2;
        k.as<float>()[bad_key * n.size] = std::nanf("");  // of the first head, hidden below from everyone
        Tensor bias = random_numbers({1, n.heads, n.rows, n.keys}, 4);
        Random random(6);
        for (std::int64_t at = 0; at < bias.elements(); ++at) {
            const std::int64_t key = at % n.keys, row = at / n.keys % n.rows;
            const bool hides = key == bad_key || random.chance(0.1) || (key >= 32 && key < 48) || row == 37;
            if (hides) { bias.as<float>()[at] = hidden; }
        }
        expect_like_reference(n, k.to(DType::bf16), bias, 0.125, name_of(n));
    }
}

/// Masks made of the lowest float: a row that has nothing else sees all keys alike, and its lse, a float too, cannot
/// tell how many they are: no gradients then.
TEST(BiasInBf16, LowestInsteadOfHidden) {
    for (const BiasSizes& n : bias_sizes) {
        const Tensor k = random_numbers({1, n.heads, n.keys, n.size}, 2).to(DType::bf16);
        Tensor bias = random_numbers({1, n.heads, n.rows, n.keys}, 4);
        for (std::int64_t at = 0; at < bias.elements(); ++at) {
            const std::int64_t key = at % n.keys, row = at / n.keys % n.rows;
            if (row % 5 == 0 || key > row) { bias.as<float>()[at] = lowest; }
        }
        expect_like_reference(n, k, bias, 0.125, name_of(n), false);
    }
}

/// The same on every kernel, with what else may stand between the score and its weight.
TEST(LowestBias, IsSeenOnEveryKernel) {
    constexpr std::int64_t keys = 150;
    Context context(2);
    Sample sample((test_stride() + 2) / 3);
    for (const std::int64_t rows : {1, 20, 70}) {
        const Tensor q = random_numbers({1, 4, rows, 24}, 1);
        const Tensor k = random_numbers({1, 2, keys, 24}, 2);
        const Tensor v = random_numbers({1, 2, keys, 24}, 3);
        const Tensor slopes = random_numbers({4}, 4, 0.1);
        for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
            Tensor bias = random_numbers({1, 1, rows, keys}, 5).to(dtype);
            const double low = dtype == DType::f64    ? std::numeric_limits<double>::lowest()
                               : dtype == DType::bf16 ? -0x1.FEp127
                                                      : static_cast<double>(lowest);
            for (std::int64_t at = 0; at < bias.elements(); ++at) {
                if (at / keys % 3 == 0 || at % keys > 100) { write_number(dtype, bias.data(), at, low); }
                if (at % keys == 7) { write_number(dtype, bias.data(), at, static_cast<double>(hidden)); }
            }
            AttentionOptions variants[4];
            variants[1].causal = true;
            variants[2].alibi_slopes = slopes;
            variants[3].softcap = 5;
            for (AttentionOptions& options : variants) {
                if (!sample.takes()) { continue; }
                options.bias = bias;
                for (const DType type : {DType::f32, DType::bf16}) {
                    const Tensor inputs[3] = {q.to(type), k.to(type), v.to(type)};
                    Tensor expected(DType::f32, q.shape()), expected_lse(DType::f32, {1, 4, rows});
                    options.kernel = "reference";
                    attend(context, inputs[0], inputs[1], inputs[2], {.out = expected, .lse = expected_lse}, options);
                    for (const std::string& kernel : testing::runnable_kernels()) {
                        Tensor out(DType::f32, q.shape()), lse(DType::f32, {1, 4, rows});
                        options.kernel = kernel;
                        attend(context, inputs[0], inputs[1], inputs[2], {.out = out, .lse = lse}, options);
                        for (std::int64_t n = 0; n < out.elements(); ++n) {
                            ASSERT_NEAR(out.as<float>()[n], expected.as<float>()[n], type == DType::f32 ? 1e-5 : 0.02)
                                << kernel << ", " << rows << " rows, bias " << heed::name_of(dtype) << ", at " << n;
                        }
                        for (std::int64_t n = 0; n < lse.elements(); ++n) {
                            const double x = expected_lse.as<float>()[n], tolerance = type == DType::f32 ? 1e-5 : 0.02;
                            ASSERT_TRUE(x < -1e38 ? lse.as<float>()[n] < -1e38F
                                                  : std::abs(lse.as<float>()[n] - x) <= tolerance)
                                << kernel << ", " << rows << " rows, bias " << heed::name_of(dtype) << ", at " << n;
                        }
                    }
                }
            }
        }
    }
}

TEST(BiasInBf16, AnyScale) {
    Sample sample((test_stride() + 2) / 3);
    for (const BiasSizes& n : bias_sizes) {
        const Tensor k = random_numbers({1, n.heads, n.keys, n.size}, 2).to(DType::bf16);
        const Tensor bias = random_numbers({1, n.heads, n.rows, n.keys}, 4, 3);
        for (const double scale : {-0.125, 0.0, 1e-6}) {
            if (!sample.takes()) { continue; }
            expect_like_reference(n, k, bias, scale, name_of(n) + ", scale " + std::to_string(scale));
        }
    }
}

}  // namespace
}  // namespace heed::testing
