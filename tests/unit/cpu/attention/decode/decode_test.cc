/// Few rows over many keys, as in decoding, against the reference: each number of rows that has code of its own, where
/// keys are many enough to be taken by it.

#include "support/random.h"
#include "support/sample.h"
#include "unit/cpu/attention/decode/decode_variants.h"

#include <cmath>
#include <string>

#include <gtest/gtest.h>

#include <heed/heed.h>

namespace heed::testing {
namespace {

Tensor decode_numbers(const Shape& shape, unsigned seed, DType dtype) { return random_numbers(shape, seed).to(dtype); }

class FewRows : public ::testing::TestWithParam<DType> {};

TEST_P(FewRows, EqualTheReference) {
    const DType dtype = GetParam();
    const double tolerance = dtype == DType::f32 ? 2e-6 : dtype == DType::f16 ? 2e-3 : 2e-2;
    constexpr std::int64_t groups = 2, keys = 1100;
    Context context(2);
    Sample sample(std::min(5, test_stride()));
    for (const std::int64_t size : {64, 128}) {
        const Tensor k = decode_numbers({1, groups, keys, size}, 1, dtype);
        const Tensor v = decode_numbers({1, groups, keys, size}, 2, dtype);
        for (const std::int64_t group : {1, 2, 4}) {
            for (const std::int64_t rows : {1, 3, 4}) {
                const Shape shape{1, groups * group, rows, size};
                const Tensor q = decode_numbers(shape, 3, dtype);
                const DecodeVariants variants(groups * group, rows, keys, 700);
                for (std::size_t n = 0; n < variants.size(); ++n) {
                    if (!sample.takes()) { continue; }
                    Tensor out(dtype, shape), expected(dtype, shape);
                    AttentionOptions options = variants[n];
                    attend(context, q, k, v, out, options);
                    options.kernel = "reference";
                    attend(context, q, k, v, expected, options);
                    const Tensor got = out.to(DType::f32), wanted = expected.to(DType::f32);
                    for (std::int64_t i = 0; i < got.elements(); ++i) {
                        ASSERT_NEAR(got.as<float>()[i], wanted.as<float>()[i], tolerance)
                            << "size " << size << ", group " << group << ", rows " << rows << ", variant " << n;
                    }
                }
            }
        }
    }
}

/// Few keys, too, whatever lies behind the last.
TEST_P(FewRows, OverFewKeysEqualTheReference) {
    const DType dtype = GetParam();
    const double tolerance = dtype == DType::f32 ? 2e-6 : dtype == DType::f16 ? 2e-3 : 2e-2;
    constexpr std::int64_t groups = 3, most = 80;
    Context context(2);
    for (const std::int64_t size : {40, 64, 128}) {
        for (const std::int64_t keys : {1, 2, 15, 16, 17, 33, 64, 65, 79}) {
            Tensor k = decode_numbers({1, groups, most, size}, 1, DType::f32);
            Tensor v = decode_numbers({1, groups, most, size}, 2, DType::f32);
            for (std::int64_t g = 0; g < groups; ++g) {
                for (std::int64_t n = (g * most + keys) * size; n < (g + 1) * most * size; ++n) {
                    k.as<float>()[n] = v.as<float>()[n] = std::nanf("");
                }
            }
            const Tensor k_stored = k.to(dtype), v_stored = v.to(dtype);
            const View some_k = k_stored.view().slice(2, 0, keys), some_v = v_stored.view().slice(2, 0, keys);
            for (const std::int64_t rows : {1, 3, 8}) {
                const Shape shape{1, groups, rows, size};
                const Tensor q = decode_numbers(shape, 3, dtype);
                for (const bool causal : {false, true}) {
                    Tensor out(dtype, shape), expected(dtype, shape);
                    attend(context, q, some_k, some_v, out, {.causal = causal});
                    attend(context, q, some_k, some_v, expected, {.causal = causal, .kernel = "reference"});
                    const Tensor got = out.to(DType::f32), wanted = expected.to(DType::f32);
                    for (std::int64_t i = 0; i < got.elements(); ++i) {
                        ASSERT_NEAR(got.as<float>()[i], wanted.as<float>()[i], tolerance)
                            << "size " << size << ", keys " << keys << ", rows " << rows << ", causal " << causal;
                    }
                }
            }
        }
    }
}

TEST_P(FewRows, PassOverHiddenNaN) {
    constexpr std::int64_t keys = 1100, size = 128, rows = 16;
    const DType dtype = GetParam();
    Tensor k = decode_numbers({1, 1, keys, size}, 1, DType::f32), v = decode_numbers({1, 1, keys, size}, 2, DType::f32);
    const Tensor q = decode_numbers({1, 1, rows, size}, 3, dtype);
    for (std::int64_t e = 0; e < size; ++e) { v.as<float>()[(keys - 1) * size + e] = std::nanf(""); }
    const Tensor k_stored = k.to(dtype), v_stored = v.to(dtype);
    Tensor out(dtype, {1, 1, rows, size});
    Context context(1);
    attend(context, q, k_stored, v_stored, out, {.causal = true});  // the last key belongs to the last row alone
    const Tensor got = out.to(DType::f32);
    for (std::int64_t i = 0; i < rows * size; ++i) {
        EXPECT_EQ(std::isnan(got.as<float>()[i]), i >= (rows - 1) * size) << i;
    }
}

INSTANTIATE_TEST_SUITE_P(Types, FewRows, ::testing::Values(DType::f32, DType::bf16, DType::f16),
                         [](const auto& each) { return std::string(name_of(each.param)); });

}  // namespace
}  // namespace heed::testing
