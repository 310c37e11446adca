#include <gtest/gtest.h>

#include <heed/dtype.h>

#include <cmath>
#include <cstdint>
#include <limits>

namespace heed {
namespace {

/// What 16 bits mean, from the definition of a binary floating-point format and nothing else.
double meaning(std::uint32_t bits, int exponent_bits) {
    const int fraction_bits = 15 - exponent_bits;
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = static_cast<int>(bits >> fraction_bits) & ((1 << exponent_bits) - 1);
    const double fraction = std::ldexp(static_cast<double>(bits & ((1U << fraction_bits) - 1)), -fraction_bits);
    const double sign = (bits & 0x8000U) != 0 ? -1 : 1;
    if (exponent == (1 << exponent_bits) - 1) {
        return fraction == 0 ? sign * std::numeric_limits<double>::infinity()
                             : std::numeric_limits<double>::quiet_NaN();
    }
    return exponent == 0 ? sign * std::ldexp(fraction, 1 - bias) : sign * std::ldexp(1 + fraction, exponent - bias);
}

template <class Half>
void every_pattern_widens(int exponent_bits) {
    for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
        const Half half = Half::from_bits(static_cast<std::uint16_t>(bits));
        const double expected = meaning(bits, exponent_bits);
        const auto got = static_cast<float>(half);
        const auto wide = static_cast<double>(half);
        if (std::isnan(expected)) {
            ASSERT_TRUE(std::isnan(got) && std::isnan(wide)) << bits;
            ASSERT_TRUE(std::isnan(static_cast<float>(Half(got)))) << bits;
            continue;
        }
        ASSERT_EQ(static_cast<double>(got), expected) << bits;
        ASSERT_EQ(wide, expected) << bits;
        ASSERT_EQ(std::signbit(got), (bits & 0x8000U) != 0) << bits;
        ASSERT_EQ(Half(got).bits, bits);
    }
}

/// Between every two neighbours: the midpoint goes to the even one, what is beside the midpoint to the nearer one.
template <class Half>
void everything_between_rounds_to_nearest_even(int exponent_bits) {
    const std::uint32_t top = ((1U << exponent_bits) - 1) << (15 - exponent_bits);  // infinity
    for (std::uint32_t bits = 0; bits < top; ++bits) {
        const double low = meaning(bits, exponent_bits);
        // The largest number's upper neighbour would be the next power of two: from half-way there on, infinity.
        const double high =
            bits + 1 == top ? 2 * low - meaning(bits - 1, exponent_bits) : meaning(bits + 1, exponent_bits);
        const double middle = (low + high) / 2;
        const auto exact = static_cast<float>(middle);
        ASSERT_EQ(static_cast<double>(exact), middle);
        const std::uint32_t even = bits % 2 == 0 ? bits : bits + 1;
        ASSERT_EQ(Half(exact).bits, even) << bits;
        ASSERT_EQ(Half(std::nextafter(exact, 0.0F)).bits, bits) << bits;
        ASSERT_EQ(Half(std::nextafter(exact, std::numeric_limits<float>::infinity())).bits, bits + 1) << bits;
        ASSERT_EQ(Half(-exact).bits, even | 0x8000U) << bits;
    }
}

TEST(DType, EveryBf16Pattern) { every_pattern_widens<bf16>(8); }
TEST(DType, EveryF16Pattern) { every_pattern_widens<f16>(5); }
TEST(DType, Bf16RoundsToNearestEven) { everything_between_rounds_to_nearest_even<bf16>(8); }
TEST(DType, F16RoundsToNearestEven) { everything_between_rounds_to_nearest_even<f16>(5); }

TEST(DType, OverflowAndUnderflow) {
    EXPECT_EQ(f16(65519.99F).bits, 0x7bffU);
    EXPECT_EQ(f16(65520.0F).bits, 0x7c00U);
    EXPECT_EQ(f16(-1e30F).bits, 0xfc00U);
    EXPECT_EQ(f16(0x1p-25F).bits, 0U);
    EXPECT_EQ(f16(0x1.8p-25F).bits, 1U);
    EXPECT_EQ(f16(-0.0F).bits, 0x8000U);
    EXPECT_EQ(bf16(std::numeric_limits<float>::max()).bits, 0x7f80U);
    EXPECT_EQ(bf16(std::numeric_limits<float>::infinity()).bits, 0x7f80U);
}

TEST(DType, ANanKeepsBeingOneWhateverItsPayload) {
    for (const std::uint32_t word : {0x7f800001U, 0x7fc00000U, 0xff80ffffU, 0x7fffffffU, 0xffffffffU}) {
        const auto nan = std::bit_cast<float>(word);
        EXPECT_TRUE(std::isnan(static_cast<float>(bf16(nan))));
        EXPECT_TRUE(std::isnan(static_cast<float>(f16(nan))));
        EXPECT_EQ(std::signbit(static_cast<float>(bf16(nan))), std::signbit(nan));
        EXPECT_EQ(std::signbit(static_cast<float>(f16(nan))), std::signbit(nan));
    }
}

TEST(DType, NamesAndSizes) {
    struct {
        DType dtype;
        const char* name;
        std::size_t size;
    } const all[] = {{DType::f32, "f32", 4},     {DType::bf16, "bf16", 2}, {DType::f16, "f16", 2},
                     {DType::f64, "f64", 8},     {DType::i64, "i64", 8},   {DType::i32, "i32", 4},
                     {DType::i16, "i16", 2},     {DType::i8, "i8", 1},     {DType::u64, "u64", 8},
                     {DType::u32, "u32", 4},     {DType::u16, "u16", 2},   {DType::u8, "u8", 1},
                     {DType::boolean, "bool", 1}};
    for (const auto& [dtype, name, size] : all) {
        EXPECT_EQ(name_of(dtype), name);
        EXPECT_EQ(size_of(dtype), size);
    }
    EXPECT_EQ(dtype_of<float>(), DType::f32);
    EXPECT_EQ(dtype_of<f16>(), DType::f16);
    EXPECT_EQ(dtype_of<bool>(), DType::boolean);
    EXPECT_EQ(dtype_of<std::uint64_t>(), DType::u64);
}

}  // namespace
}  // namespace heed
