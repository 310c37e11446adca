#include <heed/alibi.h>
#include <heed/error.h>

#include <gtest/gtest.h>

namespace heed {
namespace {

TEST(Alibi, PowersOfTwo) {
    EXPECT_EQ(default_alibi_slopes(1), (std::vector{1.0 / 256}));
    EXPECT_EQ(default_alibi_slopes(8),
              (std::vector{1.0 / 2, 1.0 / 4, 1.0 / 8, 1.0 / 16, 1.0 / 32, 1.0 / 64, 1.0 / 128, 1.0 / 256}));
}

TEST(Alibi, OtherCountsTakeTheOddOnesOfTheNextSeries) {
    EXPECT_EQ(default_alibi_slopes(6), (std::vector{1.0 / 4, 1.0 / 16, 1.0 / 64, 1.0 / 256, 1.0 / 2, 1.0 / 8}));
    const std::vector<double> sixteen = default_alibi_slopes(16);
    const std::vector<double> twelve = default_alibi_slopes(12);
    ASSERT_EQ(twelve.size(), 12U);
    for (std::size_t n = 0; n < 4; ++n) { EXPECT_DOUBLE_EQ(twelve[8 + n], sixteen[2 * n]); }
}

TEST(Alibi, Bounds) {
    EXPECT_TRUE(default_alibi_slopes(0).empty());
    EXPECT_THROW(default_alibi_slopes(-1), Error);
    EXPECT_THROW(default_alibi_slopes(std::int64_t{1} << 40), Error);
}

}  // namespace
}  // namespace heed
