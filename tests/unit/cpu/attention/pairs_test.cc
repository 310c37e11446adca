/// bf16 without lse, where weights may come from a shorter exponential, against the reference and against the same call
/// with lse.

#include "support/numbers.h"
#include "support/random.h"
#include "support/sample.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include <heed/heed.h>

namespace heed::testing {
namespace {

double largest_difference(const Tensor& a, const Tensor& b) {
    double most = 0;
    for (std::int64_t n = 0; n < a.elements(); ++n) {
        const double off = std::abs(static_cast<double>(a.as<float>()[n]) - static_cast<double>(b.as<float>()[n]));
        most = std::isnan(off) ? std::numeric_limits<double>::infinity() : std::max(most, off);
    }
    return most;
}

TEST(WeightsInPairs, AreAsGoodWithoutLse) {
    Context context(2);
    Sample sample((test_stride() + 4) / 5);
    // Rows and keys that fill tiles and that do not; one, two, three and four vectors of rows.
    for (const std::int64_t rows : {12, 20, 40, 64, 131}) {
        for (const std::int64_t keys : {47, 192, 501}) {
            if (!sample.takes()) { continue; }
            const Tensor q = random_numbers({1, 2, rows, 64}, 1).to(DType::bf16);
            const Tensor k = random_numbers({1, 2, keys, 64}, 2).to(DType::bf16);
            const Tensor v = random_numbers({1, 2, keys, 64}, 3).to(DType::bf16);
            const Tensor bias = random_numbers({1, 1, rows, keys}, 4);
            std::vector<AttentionOptions> variants(4);
            variants[1].causal = true;
            variants[2].bias = bias;
            variants[3].softcap = 5;
            for (std::size_t n = 0; n < variants.size(); ++n) {
                // In float, so that what is compared is the weights and not the rounding of out.
                Tensor out(DType::f32, q.shape()), with_lse(DType::f32, q.shape()), expected(DType::f32, q.shape());
                Tensor lse(DType::f32, {1, 2, rows});
                attend(context, q, k, v, out, variants[n]);
                attend(context, q, k, v, {.out = with_lse, .lse = lse}, variants[n]);
                variants[n].kernel = "reference";
                attend(context, q, k, v, expected, variants[n]);
                const double error = largest_difference(out, expected);
                EXPECT_LE(error, 4 * 0x1p-9) << rows << " rows, " << keys << " keys, variant " << n;
                EXPECT_LE(error, 1.25 * largest_difference(with_lse, expected) + 3e-4)
                    << rows << " rows, " << keys << " keys, variant " << n;
            }
        }
    }
}

TEST(WeightsInPairs, OneVisibleKeyIsItsValue) {
    constexpr std::int64_t rows = 64, keys = 200;
    const Tensor q = random_numbers({1, 1, rows, 64}, 1).to(DType::bf16);
    const Tensor k = random_numbers({1, 1, keys, 64}, 2).to(DType::bf16);
    const Tensor v = random_numbers({1, 1, keys, 64}, 3).to(DType::bf16);
    Tensor bias(DType::f32, {1, 1, rows, keys});
    for (std::int64_t n = 0; n < rows * keys; ++n) { bias.as<float>()[n] = n % keys == n / keys ? 1.0F : hidden; }
    Tensor out(DType::f32, {1, 1, rows, 64});
    Context context(1);
    attend(context, q, k, v, out, {.bias = bias});
    const Tensor values = v.to(DType::f32);
    for (std::int64_t n = 0; n < rows * 64; ++n) { EXPECT_FLOAT_EQ(out.as<float>()[n], values.as<float>()[n]) << n; }
}

TEST(WeightsInPairs, BiasHidesNaNAndPassesItsOwn) {
    constexpr std::int64_t rows = 64, keys = 200, bad_key = 70, bad_row = 33;
    const Tensor q = random_numbers({1, 1, rows, 64}, 1).to(DType::bf16);
    Tensor k = random_numbers({1, 1, keys, 64}, 2), v = random_numbers({1, 1, keys, 64}, 3);
    k.as<float>()[bad_key * 64] = std::nanf("");
    v.as<float>()[bad_key * 64 + 5] = std::numeric_limits<float>::infinity();
    Tensor bias = random_numbers({1, 1, rows, keys}, 4);
    for (std::int64_t i = 0; i < rows; ++i) { bias.as<float>()[i * keys + bad_key] = hidden; }
    bias.as<float>()[bad_row * keys + 3] = std::nanf("");
    const Tensor k_stored = k.to(DType::bf16), v_stored = v.to(DType::bf16);
    Tensor out(DType::f32, {1, 1, rows, 64});
    Context context(1);
    attend(context, q, k_stored, v_stored, out, {.bias = bias});
    for (std::int64_t n = 0; n < rows * 64; ++n) {
        EXPECT_EQ(std::isfinite(out.as<float>()[n]), n / 64 != bad_row) << n;
    }
}

/// A tile's weights are made beside the product of the tile or block before it: none where it stands alone.
TEST(WeightsInPairs, TheSameBitsInAnyCompany) {
    constexpr std::int64_t rows = 300, keys = 700;
    const Tensor k = random_numbers({1, 1, keys, 64}, 2).to(DType::bf16);
    const Tensor v = random_numbers({1, 1, keys, 64}, 3).to(DType::bf16);
    const Tensor all = random_numbers({1, 1, rows, 64}, 1);
    const Tensor q = all.to(DType::bf16);
    for (const bool with_lse : {false, true}) {
        Tensor together(DType::f32, q.shape()), lse(DType::f32, {1, 1, rows});
        Context context(1);
        attend(context, q, k, v, {.out = together, .lse = with_lse ? MutableView(lse) : MutableView()});
        for (std::int64_t first = 0; first + 64 <= rows; first += 64) {
            Tensor some(DType::f32, {1, 1, 64, 64}), some_lse(DType::f32, {1, 1, 64});
            std::copy_n(all.as<float>() + first * 64, 64 * 64, some.as<float>());
            Tensor alone(DType::f32, some.shape());
            attend(context, some.to(DType::bf16), k, v,
                   {.out = alone, .lse = with_lse ? MutableView(some_lse) : MutableView()});
            for (std::int64_t n = 0; n < 64 * 64; ++n) {
                ASSERT_EQ(alone.as<float>()[n], together.as<float>()[first * 64 + n]) << first << " " << n;
            }
        }
    }
}

/// Tiles that need care, between others whose products wait for the next weights.
TEST(WeightsInPairs, CareInOneBlockOfMany) {
    constexpr std::int64_t rows = 200, keys = 800;
    for (const std::int64_t bad_key : {3, 250, 383, 799}) {
        const Tensor q = random_numbers({1, 1, rows, 64}, 1).to(DType::bf16);
        const Tensor k = random_numbers({1, 1, keys, 64}, 2).to(DType::bf16);
        Tensor v = random_numbers({1, 1, keys, 64}, 3);
        v.as<float>()[bad_key * 64 + 5] = std::numeric_limits<float>::infinity();
        const Tensor v_stored = v.to(DType::bf16);
        Tensor bias = random_numbers({1, 1, rows, keys}, 4);
        for (std::int64_t i = 0; i < rows; ++i) { bias.as<float>()[i * keys + bad_key] = hidden; }
        Tensor out(DType::f32, q.shape()), expected(DType::f32, q.shape());
        Context context(2);
        attend(context, q, k, v_stored, out, {.bias = bias});
        attend(context, q, k, v_stored, expected, {.bias = bias, .kernel = "reference"});
        EXPECT_LE(largest_difference(out, expected), 4 * 0x1p-9) << bad_key;
    }
}

}  // namespace
}  // namespace heed::testing
