/// What patterns say of whole tiles, against looking at every pair.
#include <heed/pattern.h>

#include <array>
#include <random>
#include <sstream>
#include <string>

#include "unit/ops/pattern_predicates.h"

namespace heed::testing {
namespace {

class Dice {
public:
    explicit Dice(unsigned seed) : engine_(seed) {}
    /// One of [first, last].
    std::int64_t operator()(std::int64_t first, std::int64_t last) {
        return first + static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(last - first + 1));
    }

private:
    std::mt19937 engine_;
};

constexpr std::int64_t batches = 2;
constexpr std::int64_t heads = 3;

PatternTile random_tile(Dice& dice) {
    PatternTile tile{.batch = dice(0, batches - 1), .head = dice(0, heads - 1)};
    tile.query_begin = dice(-12, 60);
    tile.query_end = tile.query_begin + dice(1, dice(0, 3) == 0 ? 30 : 6);
    tile.key_begin = dice(-12, 60);
    tile.key_end = tile.key_begin + dice(1, dice(0, 3) == 0 ? 30 : 6);
    return tile;
}

Numbers packed_ids(Dice& dice, bool sorted) {
    Numbers ids;
    for (std::int64_t id = 0; ids.size() < 50; ++id) {
        ids.insert(ids.end(), static_cast<std::size_t>(dice(1, 12)), sorted ? id : 1000 - id);
    }
    return ids;
}

Numbers repeating_ids(Dice& dice) {
    Numbers ids;
    while (ids.size() < 50) ids.insert(ids.end(), static_cast<std::size_t>(dice(1, 9)), dice(0, 3));
    return ids;
}

Case random_leaf(Dice& dice) {
    switch (dice(0, 12)) {
        case 0: return causal_case();
        case 1: return window_case(dice(-1, 12), dice(-1, 12));
        case 2: return length_case(true, {dice(0, 60), dice(0, 60)});
        case 3: return length_case(false, {dice(0, 60)});
        case 4: return document_case({packed_ids(dice, true), packed_ids(dice, false)});
        case 5: return document_case({repeating_ids(dice)});
        case 6: return strided_case(dice(1, 15));
        case 7: {
            const std::int64_t stride = dice(1, 15);
            return fixed_case(stride, dice(1, stride));
        }
        case 8: return dilated_case(dice(-1, 6), dice(-1, 6), dice(1, 9));
        case 9: {
            Numbers positions;
            for (std::int64_t n = dice(0, 12); n > 0; --n) positions.push_back(dice(0, 20));
            return global_case(positions);
        }
        case 10: {
            const std::int64_t blocks = dice(0, 9);
            return random_case(dice(1, 9), blocks, dice(0, blocks), static_cast<std::uint64_t>(dice(0, 1000)));
        }
        case 11: {
            std::vector<std::pair<std::int64_t, std::int64_t>> pairs;
            for (std::int64_t n = dice(0, 60); n > 0; --n) pairs.emplace_back(dice(0, 7), dice(0, 7));
            return blocks_case(dice(1, 9), dice(1, 9), pairs);
        }
        default: return per_head_case({causal_case(), strided_case(dice(1, 4)), window_case(dice(0, 9), dice(0, 9))});
    }
}

Case random_case_of_depth(Dice& dice, int depth) {
    if (depth == 0 || dice(0, 4) == 0) return random_leaf(dice);
    const std::int64_t operation = dice(0, 5);
    if (operation == 0) {
        return per_head_case({random_case_of_depth(dice, depth - 1), random_leaf(dice), random_leaf(dice)});
    }
    const Case a = random_case_of_depth(dice, depth - 1);
    const Case b = random_case_of_depth(dice, depth - 1);
    return operation % 2 == 0 ? a & b : a | b;
}

std::string text(const PatternTile& tile) {
    std::ostringstream out;
    out << " b " << tile.batch << " h " << tile.head << " queries [" << tile.query_begin << ", " << tile.query_end
        << ") keys [" << tile.key_begin << ", " << tile.key_end << ")";
    return out.str();
}

TEST(PatternCover, LeavesAreExact) {
    Dice dice(1);
    int of_each[3] = {0, 0, 0};
    for (int n = 0; n < 1500; ++n) {
        const Case c = random_leaf(dice);
        for (int t = 0; t < 8; ++t) {
            const PatternTile tile = random_tile(dice);
            const Cover cover = c.pattern.cover(tile);
            ASSERT_EQ(cover, brute_cover(c.predicate, tile)) << c.pattern.describe() << text(tile);
            ++of_each[static_cast<std::size_t>(cover)];
        }
    }
    // The tiles drawn must put all three answers to the test.
    for (const int times : of_each) EXPECT_GT(times, 1000);
}

TEST(PatternCover, CompositionsAreSafeAndRowsRight) {
    Dice dice(2);
    int decided = 0;
    for (int n = 0; n < 1500; ++n) {
        const Case c = random_case_of_depth(dice, 3);
        for (int t = 0; t < 4; ++t) {
            const PatternTile tile = random_tile(dice);
            const Cover cover = c.pattern.cover(tile);
            const Cover truth = brute_cover(c.predicate, tile);
            ASSERT_TRUE(cover == Cover::some || cover == truth) << c.pattern.describe() << text(tile);
            decided += cover != Cover::some ? 1 : 0;

            const std::int64_t i = tile.query_begin;
            std::vector<std::uint8_t> row(static_cast<std::size_t>(tile.key_end - tile.key_begin) + 1, 77);
            c.pattern.row(tile.batch, tile.head, i, tile.key_begin, tile.key_end, row.data());
            for (std::int64_t j = tile.key_begin; j < tile.key_end; ++j) {
                const bool expected = c.predicate(tile.batch, tile.head, i, j);
                ASSERT_EQ(c.pattern.allows(tile.batch, tile.head, i, j), expected)
                    << c.pattern.describe() << text(tile);
                ASSERT_EQ(row[static_cast<std::size_t>(j - tile.key_begin)], expected ? 1 : 0)
                    << c.pattern.describe() << text(tile);
            }
            ASSERT_EQ(row.back(), 77);
        }
    }
    EXPECT_GT(decided, 1000);
}

TEST(PatternCover, EmptyTilesAreNone) {
    const std::vector<Pattern> all = {Pattern(), patterns::causal(), patterns::global_tokens({0, 1, 2}),
                                      patterns::fixed(4, 4), patterns::causal() | patterns::strided(1)};
    for (const Pattern& pattern : all) {
        EXPECT_EQ(pattern.cover({.query_begin = 3, .query_end = 3, .key_begin = 0, .key_end = 2}), Cover::none);
        EXPECT_EQ(pattern.cover({.query_begin = 0, .query_end = 2, .key_begin = 1, .key_end = 1}), Cover::none);
        EXPECT_EQ(pattern.cover({.query_begin = 4, .query_end = 2, .key_begin = 5, .key_end = 1}), Cover::none);
        std::uint8_t untouched = 77;
        pattern.row(0, 0, 0, 5, 5, &untouched);
        pattern.row(0, 0, 0, 5, 3, &untouched);
        EXPECT_EQ(untouched, 77);
    }
}

/// Tiles of 64 x 64 of a sequence of 64 * tiles: how many are none, some, all.
std::array<int, 3> count_tiles(const Pattern& pattern, std::int64_t tiles) {
    std::array<int, 3> counts{};
    for (std::int64_t q = 0; q < tiles; ++q) {
        for (std::int64_t k = 0; k < tiles; ++k) {
            const Cover cover = pattern.cover(
                {.query_begin = q * 64, .query_end = q * 64 + 64, .key_begin = k * 64, .key_end = k * 64 + 64});
            ++counts[static_cast<std::size_t>(cover)];
        }
    }
    return counts;
}

using Counts = std::array<int, 3>;

TEST(PatternCover, KernelsSkipWhatTheyCan) {
    using namespace patterns;
    // Below, diagonal, above.
    EXPECT_EQ(count_tiles(causal(), 16), (Counts{120, 16, 120}));
    // 128 back: the diagonal and the tile two before it are cut, the one between is whole.
    EXPECT_EQ(count_tiles(causal() & window(128, 0), 16), (Counts{256 - 16 - 15 - 14, 16 + 14, 15}));
    // Sixteen documents of one tile each.
    std::vector<std::int64_t> ids(1024);
    for (std::size_t n = 0; n < ids.size(); ++n) ids[n] = static_cast<std::int64_t>(n / 64);
    EXPECT_EQ(count_tiles(document({ids}), 16), (Counts{240, 0, 16}));
    EXPECT_EQ(count_tiles(causal() & document({ids}), 16), (Counts{240, 16, 0}));
    // Whole blocks: never partial.
    EXPECT_EQ(count_tiles(random_blocks(64, 16, 3, 5), 16), (Counts{16 * 13, 0, 16 * 3}));
    EXPECT_EQ(count_tiles(blocks(64, 64, std::vector<BlockPair>{{0, 0}, {3, 9}}), 16), (Counts{254, 0, 2}));
    // A stride of eight tiles touches the diagonals 0 and 8 to either side, and nothing else.
    EXPECT_EQ(count_tiles(strided(512), 16), (Counts{256 - 16 - 2 * 8, 16 + 2 * 8, 0}));
}

TEST(PatternCover, ManyRunsOfRepeatingIdsAreNotCompared) {
    // 2 x 64 runs that never meet: the answer would be none, but takes longer to know than it saves.
    Numbers ids;
    for (std::int64_t n = 0; n < 64; ++n) ids.push_back(n % 2);
    for (std::int64_t n = 0; n < 64; ++n) ids.push_back(2 + n % 2);
    const Pattern pattern = patterns::document({ids});
    EXPECT_EQ(pattern.cover({.query_end = 64, .key_begin = 64, .key_end = 128}), Cover::some);
    EXPECT_EQ(pattern.cover({.query_end = 16, .key_begin = 64, .key_end = 80}), Cover::none);
}

}  // namespace
}  // namespace heed::testing
