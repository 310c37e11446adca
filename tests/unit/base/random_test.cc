#include <gtest/gtest.h>

#include <heed/random.h>

namespace heed {
namespace {

using Words = std::array<std::uint32_t, 4>;

TEST(Philox, PublishedAnswers) {
    EXPECT_EQ(philox4x32({0, 0, 0, 0}, 0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
    const std::uint32_t ones = 0xffffffff;
    EXPECT_EQ(philox4x32({ones, ones, ones, ones}, 0xffffffffffffffff),
              (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
    // Key words 0 and 1 are the low and the high half.
    EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822),
              (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
    EXPECT_EQ(philox4x32<7>({0, 0, 0, 0}, 0), (Words{0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48}));
}

TEST(Philox, DropoutWordsAreThoseOfTheirCoordinates) {
    for (std::uint32_t column = 0; column < 9; ++column) {
        EXPECT_EQ(dropout_word(77, 3, 5, 11, column), philox4x32({column / 4, 11, 5, 3}, 77)[column % 4]);
    }
    static_assert(dropout_word(0, 0, 0, 0, 1) == 0xe169c58d, "usable in constant expressions");
}

TEST(Philox, DropoutThreshold) {
    EXPECT_EQ(dropout_threshold(0), 0U);
    EXPECT_EQ(dropout_threshold(0.5), 0x80000000U);
    EXPECT_EQ(dropout_threshold(0.1), 429496730U);
    EXPECT_EQ(dropout_threshold(1 - 0x1p-53), 0x100000000U);  // rounds to everything: no 32-bit word is kept
}

}  // namespace
}  // namespace heed
