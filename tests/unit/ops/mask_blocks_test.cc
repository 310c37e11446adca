#include "ops/mask_blocks.h"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

namespace heed::detail {
namespace {

/// A call of `queries` and `keys` with a mask, as far as visible_blocks looks at it.
struct Masked {
    Masked(std::int64_t queries, std::int64_t keys, const std::function<bool(std::int64_t, std::int64_t)>& sees)
        : bytes(static_cast<std::size_t>(queries * keys)), numbers(1) {
        for (std::int64_t i = 0; i < queries; ++i) {
            for (std::int64_t j = 0; j < keys; ++j) { bytes[static_cast<std::size_t>(i * keys + j)] = sees(i, j); }
        }
        problem.batch = problem.heads = problem.kv_heads = 1;
        problem.queries = queries;
        problem.keys = keys;
        problem.q = problem.k = View(DType::f32, numbers.data(), Shape{1, 1, 1, 1});
        problem.options.allow = View(DType::boolean, bytes.data(), Shape{1, 1, queries, keys});
    }

    std::vector<std::uint8_t> bytes;
    std::vector<float> numbers;
    AttentionProblem problem;
};

Cover cover(const Pattern& pattern, std::int64_t query, std::int64_t key) {
    return pattern.cover(
        {.batch = 0, .head = 0, .query_begin = query, .query_end = query + 64, .key_begin = key, .key_end = key + 64});
}

TEST(MaskBlocks, HiddenOnesAreLeftOut) {
    Masked call(200, 300, [](std::int64_t i, std::int64_t j) { return j <= i; });
    call.problem.options.align = Align::top_left;
    const Pattern pattern = visible_blocks(call.problem);
    ASSERT_TRUE(static_cast<bool>(pattern));
    for (std::int64_t query = 0; query < 256; query += 64) {
        for (std::int64_t key = 0; key < 320; key += 64) {
            EXPECT_EQ(cover(pattern, query, key), key <= query ? Cover::all : Cover::none) << query << " " << key;
        }
    }
}

TEST(MaskBlocks, RowsCountAsTheirPositions) {
    // From the bottom right, row 0 is at position 100: rows 0 to 27 are of block 1.
    Masked call(200, 300, [](std::int64_t i, std::int64_t j) { return i < 28 && j == 299; });
    const Pattern pattern = visible_blocks(call.problem);
    EXPECT_EQ(cover(pattern, 64, 256), Cover::all);
    EXPECT_EQ(cover(pattern, 128, 256), Cover::none);
    EXPECT_EQ(cover(pattern, 64, 192), Cover::none);
    // With more queries than keys the first ones are below 0, where no list of blocks reaches.
    Masked late(300, 200, [](std::int64_t i, std::int64_t) { return i < 100; });
    EXPECT_FALSE(static_cast<bool>(visible_blocks(late.problem)));
}

TEST(MaskBlocks, NothingIsSaidWhereItWouldNotPay) {
    const auto everything = [](std::int64_t, std::int64_t) { return true; };
    const auto nothing = [](std::int64_t, std::int64_t) { return false; };
    EXPECT_FALSE(static_cast<bool>(visible_blocks(Masked(200, 300, everything).problem)));
    EXPECT_FALSE(static_cast<bool>(visible_blocks(Masked(100, 300, nothing).problem)));
    EXPECT_TRUE(static_cast<bool>(visible_blocks(Masked(200, 300, nothing).problem)));
    Masked without(200, 300, nothing);
    without.problem.options.allow = {};
    EXPECT_FALSE(static_cast<bool>(visible_blocks(without.problem)));
}

}  // namespace
}  // namespace heed::detail
