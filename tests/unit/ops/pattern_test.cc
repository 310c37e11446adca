/// What each pattern and composition means, what is refused, and how it reads.
#include <heed/error.h>
#include <heed/pattern.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "unit/ops/pattern_predicates.h"

namespace heed::testing {
namespace {

constexpr std::int64_t low = -23;
constexpr std::int64_t high = 41;

/// The text of the Error that `call` throws; empty where it throws none.
template <class Call>
std::string error_of(Call&& call) {
    try {
        call();
    } catch (const Error& error) { return error.what(); }
    return "";
}

TEST(Pattern, AbsentSeesEverything) {
    const Pattern absent;
    EXPECT_FALSE(absent);
    EXPECT_TRUE(absent.allows(3, 4, -5, 100));
    EXPECT_EQ(absent.cover({.query_begin = 0, .query_end = 4, .key_begin = 0, .key_end = 4}), Cover::all);
    std::vector<std::uint8_t> row(3, 0);
    absent.row(0, 0, 0, 7, 10, row.data());
    EXPECT_EQ(row, (std::vector<std::uint8_t>{1, 1, 1}));
    EXPECT_EQ(absent.describe(), "everything");
    EXPECT_NO_THROW(absent.check("attend", 3, 5));
}

TEST(Pattern, AbsentIsNeutralForBothAndDecidesEither) {
    const Pattern causal = patterns::causal();
    EXPECT_EQ((Pattern() & causal).describe(), "causal");
    EXPECT_EQ((causal & Pattern()).describe(), "causal");
    EXPECT_FALSE(Pattern() & Pattern());
    EXPECT_FALSE(Pattern() | causal);
    EXPECT_FALSE(causal | Pattern());
}

TEST(Pattern, BandsMatchTheirFormulas) {
    expect_same(causal_case(), low, high);
    for (std::int64_t left : {-1, 0, 1, 5, 100}) {
        for (std::int64_t right : {-1, 0, 2, 7, 100}) {
            expect_same(window_case(left, right), low, high);
            for (std::int64_t dilation : {1, 2, 3, 8}) expect_same(dilated_case(left, right, dilation), low, high);
        }
    }
    for (std::int64_t stride : {1, 2, 5, 16, 1000}) expect_same(strided_case(stride), low, high);
}

TEST(Pattern, FixedMatchesItsFormula) {
    for (std::int64_t stride : {1, 3, 8, 100}) {
        for (std::int64_t summary : {std::int64_t{1}, (stride + 1) / 2, stride}) {
            expect_same(fixed_case(stride, summary), low, high);
        }
    }
}

TEST(Pattern, LengthsMatchTheirFormula) {
    expect_same(length_case(true, {7, 0, 30}), low, high, 3);
    expect_same(length_case(false, {12}), low, high, 3);
    EXPECT_FALSE(patterns::padding({4, 5}).allows(2, 0, 0, 0));
    EXPECT_FALSE(patterns::padding({4, 5}).allows(-1, 0, 0, 0));
    EXPECT_EQ(patterns::padding({4, 5}).cover({.batch = 2, .query_end = 1, .key_end = 1}), Cover::none);
}

TEST(Pattern, DocumentMatchesItsFormula) {
    expect_same(document_case({{0, 0, 0, 1, 1, 2, 2, 2, 2}, {5, 5, -1, 5, 9, 9, -1, -1}, {}}), low, high, 3);
    expect_same(document_case({{3, 3, 3, 3, 2, 2, 1}}), low, high, 2);
    EXPECT_FALSE(patterns::document({{1}, {1}}).allows(2, 0, 0, 0));
}

TEST(Pattern, GlobalTokensMatchTheirFormula) {
    expect_same(global_case({17, 0, 3, 3, 200}), low, high);
    expect_same(global_case({}), low, high);
}

TEST(Pattern, BlockListsMatchTheirFormula) {
    expect_same(blocks_case(4, 8, {{3, 1}, {0, 0}, {0, 2}, {3, 1}, {9, 0}, {2, 4}}), low, high);
    expect_same(blocks_case(1, 1, {{0, 40}}), low, high);
    expect_same(blocks_case(100, 3, {{0, 0}, {0, 1}, {0, 12}, {0, 500}}), low, high);
    expect_same(blocks_case(4, 4, {}), low, high);
}

TEST(Pattern, RandomBlocksMatchTheirFormula) {
    expect_same(random_case(4, 9, 3, 1), low, high, 1, 2);
    expect_same(random_case(5, 6, 6, 2), low, high);
    expect_same(random_case(5, 6, 0, 2), low, high);
    expect_same(random_case(3, 0, 0, 2), low, high);
    expect_same(random_case(7, 1000, 100, 3), low, high);
    expect_same(random_case(1, 20000, 5000, 4), 19990, 19998);  // beyond what the stack holds
}

TEST(Pattern, RandomBlocksDrawTheSameNumberEachWithoutRepetition) {
    constexpr std::int64_t blocks = 37;
    constexpr std::int64_t count = 5;
    constexpr std::int64_t query_blocks = 2000;  // far beyond `blocks`: legal
    const Pattern pattern = patterns::random_blocks(1, blocks, count, 99);
    std::vector<int> times(blocks, 0);
    for (std::int64_t q = 0; q < query_blocks; ++q) {
        std::vector<std::uint8_t> row(blocks);
        pattern.row(0, 3, q, 0, blocks, row.data());
        ASSERT_EQ(std::accumulate(row.begin(), row.end(), 0), count) << q;
        for (std::size_t k = 0; k < row.size(); ++k) times[k] += row[k];
    }
    const double p = static_cast<double>(count) / blocks;
    const double mean = p * query_blocks;
    const double deviation = std::sqrt(query_blocks * p * (1 - p));
    for (std::int64_t k = 0; k < blocks; ++k) {
        EXPECT_NEAR(times[static_cast<std::size_t>(k)], mean, 5 * deviation) << "block " << k;
    }
}

TEST(Pattern, RandomBlocksDependOnSeedHeadAndQueryBlockAlone) {
    const auto row = [](const Pattern& pattern, std::int64_t batch, std::int64_t head, std::int64_t query) {
        std::vector<std::uint8_t> result(64 * 8);
        pattern.row(batch, head, query, 0, 64 * 8, result.data());
        return result;
    };
    const Pattern pattern = patterns::random_blocks(8, 64, 6, 7);
    const auto base = row(pattern, 0, 0, 16);
    EXPECT_EQ(base, row(pattern, 5, 0, 16));
    EXPECT_EQ(base, row(pattern, 0, 0, 23));
    EXPECT_NE(base, row(pattern, 0, 0, 24));
    EXPECT_NE(base, row(pattern, 0, 1, 16));
    EXPECT_NE(base, row(patterns::random_blocks(8, 64, 6, 8), 0, 0, 16));
}

TEST(Pattern, PerHeadAsksTheHeadsOwnPattern) {
    expect_same(per_head_case({causal_case(), strided_case(4), window_case(2, 0) | global_case({1})}), low, high, 2, 3);
    const Pattern pattern = patterns::per_head({patterns::causal(), Pattern()});
    EXPECT_TRUE(pattern.allows(0, 1, 0, 9));
    EXPECT_FALSE(pattern.allows(0, 0, 0, 9));
    EXPECT_FALSE(pattern.allows(0, 2, 9, 0));  // no such head
    EXPECT_EQ(pattern.cover({.head = -1, .query_end = 1, .key_end = 1}), Cover::none);
    std::uint8_t row = 77;
    pattern.row(0, 2, 9, 0, 1, &row);
    EXPECT_EQ(row, 0);
}

TEST(Pattern, LongRowsAreCombinedInPieces) {
    const Case c = causal_case() & (strided_case(7) | window_case(300, 0) | global_case({0, 511, 512, 1024}));
    std::vector<std::uint8_t> row(1700);
    for (std::int64_t i : {0, 511, 512, 1300}) {
        c.pattern.row(0, 0, i, -100, 1600, row.data());
        for (std::int64_t j = -100; j < 1600; ++j) {
            ASSERT_EQ(row[static_cast<std::size_t>(j + 100)], c.predicate(0, 0, i, j) ? 1 : 0) << i << ' ' << j;
        }
    }
}

// The published compositions; docs/patterns.md shows the same lines.

TEST(Pattern, PrefixLanguageModel) {
    const Pattern pattern = patterns::prefix({5}) | patterns::causal();
    expect_same({pattern, [](auto, auto, auto i, auto j) { return j < 5 || j <= i; }}, 0, 20);
}

TEST(Pattern, SinksAndRecentTokens) {
    const Pattern pattern = patterns::causal() & (patterns::prefix({4}) | patterns::window(7, 0));
    expect_same({pattern, [](auto, auto, auto i, auto j) { return j <= i && (j < 4 || j > i - 8); }}, 0, 40);
}

TEST(Pattern, SparseTransformer) {
    constexpr std::int64_t l = 6;
    constexpr std::int64_t c = 2;
    const Pattern strided = patterns::per_head({patterns::window(l - 1, 0), patterns::causal() & patterns::strided(l)});
    expect_same(
        {strided, [](auto, auto h, auto i, auto j) { return j <= i && (h == 0 ? j >= i - l + 1 : (i - j) % l == 0); }},
        0, 40, 1, 2);
    const Pattern fixed = patterns::causal() & patterns::fixed(l, c);
    expect_same({fixed, [](auto, auto, auto i, auto j) { return j <= i && (j / l == i / l || j % l >= l - c); }}, 0,
                40);
    // Two steps of the strided pair reach every earlier position.
    for (std::int64_t i = 0; i < 40; ++i) {
        for (std::int64_t j = 0; j <= i; ++j) {
            bool reached = false;
            for (std::int64_t k = j; k <= i; ++k) {
                reached = reached || (strided.allows(0, 0, i, k) && strided.allows(0, 1, k, j));
            }
            EXPECT_TRUE(reached) << i << ' ' << j;
        }
    }
}

TEST(Pattern, Longformer) {
    const Pattern pattern = patterns::window(3, 3) | patterns::global_tokens({0, 9});
    for (std::int64_t i = 0; i < 30; ++i) {
        for (std::int64_t j = 0; j < 30; ++j) {
            const bool global = i == 0 || i == 9 || j == 0 || j == 9;
            EXPECT_EQ(pattern.allows(0, 0, i, j), std::abs(i - j) <= 3 || global);
            EXPECT_EQ(pattern.allows(0, 0, i, j), pattern.allows(0, 0, j, i));
        }
    }
}

TEST(Pattern, BigBird) {
    constexpr std::int64_t block = 4;
    constexpr std::int64_t count = 8;
    std::vector<patterns::BlockPair> near_and_global;
    for (std::int64_t q = 0; q < count; ++q) {
        for (std::int64_t k = 0; k < count; ++k) {
            const bool global = q == 0 || q == count - 1 || k == 0 || k == count - 1;
            if (global || std::abs(q - k) <= 1) near_and_global.push_back({q, k});
        }
    }
    const Pattern random = patterns::random_blocks(block, count, 2, 1);
    const Pattern pattern = patterns::blocks(block, block, near_and_global) | random;
    for (std::int64_t i = 0; i < block * count; ++i) {
        for (std::int64_t j = 0; j < block * count; ++j) {
            const std::int64_t q = i / block;
            const std::int64_t k = j / block;
            const bool listed = q == 0 || q == 7 || k == 0 || k == 7 || q == k || q == k + 1 || k == q + 1;
            EXPECT_EQ(pattern.allows(0, 1, i, j), listed || draw_blocks(count, 2, 1, 1, q).contains(k));
        }
    }
}

TEST(Pattern, Describes) {
    using namespace patterns;
    EXPECT_EQ((causal() & (window(256, 0) | global_tokens({0}))).describe(), "causal & (window(256, 0) | global(0))");
    EXPECT_EQ(((causal() & window(3, -1)) | strided(4)).describe(), "(causal & window(3, -1)) | strided(4)");
    EXPECT_EQ((causal() & (strided(2) & fixed(8, 2))).describe(), "causal & strided(2) & fixed(8, 2)");
    EXPECT_EQ((dilated(2, 0, 4) | prefix({3, 4}) | padding({9})).describe(),
              "dilated(2, 0, 4) | prefix(3, 4) | padding(9)");
    EXPECT_EQ(document({{0, 0, 1}, {2}}).describe(), "document(2 lists, 3 runs)");
    EXPECT_EQ(random_blocks(64, 16, 3, 7).describe(), "random_blocks(64, 16, 3, seed 7)");
    EXPECT_EQ(blocks(64, 32, std::vector<BlockPair>{{0, 0}, {0, 0}, {1, 0}}).describe(), "blocks(64x32, 2 pairs)");
    EXPECT_EQ(per_head({causal(), Pattern()}).describe(), "per_head(causal, everything)");
    EXPECT_EQ(global_tokens({9, 8, 7, 6, 5, 4, 3, 2, 1, 1}).describe(), "global(1, 2, 3, 4, 5, 6, 7, 8, ... 9 in all)");
}

TEST(Pattern, RefusesWrongArguments) {
    using namespace patterns;
    const auto pair = [](std::int64_t q, std::int64_t k) { return std::vector<BlockPair>{{0, 0}, {q, k}}; };
    EXPECT_EQ(error_of([] { window(-2, 0); }), "[patterns::window] left: expected at least -1, got -2");
    EXPECT_EQ(error_of([] { window(0, -7); }), "[patterns::window] right: expected at least -1, got -7");
    EXPECT_EQ(error_of([] { padding({1, -1}); }), "[patterns::padding] lengths[1]: expected at least 0, got -1");
    EXPECT_EQ(error_of([] { prefix({-3}); }), "[patterns::prefix] lengths[0]: expected at least 0, got -3");
    EXPECT_EQ(error_of([] { strided(0); }), "[patterns::strided] stride: expected at least 1, got 0");
    EXPECT_EQ(error_of([] { fixed(0, 1); }), "[patterns::fixed] stride: expected at least 1, got 0");
    EXPECT_EQ(error_of([] { fixed(8, 0); }), "[patterns::fixed] summary: expected 1 to 8 (stride), got 0");
    EXPECT_EQ(error_of([] { fixed(8, 9); }), "[patterns::fixed] summary: expected 1 to 8 (stride), got 9");
    EXPECT_EQ(error_of([] { dilated(-2, 0, 1); }), "[patterns::dilated] left: expected at least -1, got -2");
    EXPECT_EQ(error_of([] { dilated(0, -2, 1); }), "[patterns::dilated] right: expected at least -1, got -2");
    EXPECT_EQ(error_of([] { dilated(1, 1, 0); }), "[patterns::dilated] dilation: expected at least 1, got 0");
    EXPECT_EQ(error_of([] {
                  global_tokens({0, -4});
              }),
              "[patterns::global_tokens] positions[1]: expected at least 0, got -4");
    EXPECT_EQ(error_of([] { random_blocks(0, 4, 2, 1); }),
              "[patterns::random_blocks] block: expected at least 1, got 0");
    EXPECT_EQ(error_of([] { random_blocks(4, -1, 0, 1); }),
              "[patterns::random_blocks] blocks: expected at least 0, got -1");
    EXPECT_EQ(error_of([] { random_blocks(4, 4, 5, 1); }),
              "[patterns::random_blocks] count: expected 0 to 4 (blocks), got 5");
    EXPECT_EQ(error_of([] { random_blocks(4, 4, -1, 1); }),
              "[patterns::random_blocks] count: expected 0 to 4 (blocks), got -1");
    EXPECT_EQ(error_of([] { random_blocks(4, std::int64_t{1} << 31, 1, 1); }),
              "[patterns::random_blocks] blocks: expected less than 2^31, got 2147483648");
    EXPECT_EQ(error_of([] { blocks(0, 1, {}); }), "[patterns::blocks] query_block_size: expected at least 1, got 0");
    EXPECT_EQ(error_of([] { blocks(1, 0, {}); }), "[patterns::blocks] key_block_size: expected at least 1, got 0");
    EXPECT_EQ(error_of([&] { blocks(1, 1, pair(-1, 0)); }),
              "[patterns::blocks] pairs[1].query_block: expected at least 0, got -1");
    EXPECT_EQ(error_of([&] { blocks(1, 1, pair(0, -1)); }),
              "[patterns::blocks] pairs[1].key_block: expected at least 0, got -1");
    EXPECT_EQ(error_of([] { per_head({}); }),
              "[patterns::per_head] pattern_of_head: expected a pattern for each query head, got none");
}

TEST(Pattern, ChecksBatchEntriesAndHeads) {
    using namespace patterns;
    EXPECT_EQ(error_of([] {
                  padding({1, 2, 3}).check("attend", 4, 1);
              }),
              "[attend] pattern: lengths of padding: expected 1 or 4, one for each batch entry, got 3");
    EXPECT_EQ(error_of([] {
                  prefix({1, 2}).check("attend", 1, 1);
              }),
              "[attend] pattern: lengths of prefix: expected 1, got 2");
    EXPECT_EQ(error_of([] {
                  document({{}, {}}).check("explain", 3, 1);
              }),
              "[explain] pattern: lists of document: expected 1 or 3, one for each batch entry, got 2");
    EXPECT_EQ(error_of([] {
                  per_head({causal(), causal()}).check("attend", 1, 8);
              }),
              "[attend] pattern: patterns of per_head: expected 8, one for each query head, got 2");
    const Pattern nested = causal() & (strided(2) | per_head({causal(), padding({1, 2, 3})}));
    EXPECT_NO_THROW(nested.check("attend", 3, 2));
    EXPECT_NE(error_of([&] { nested.check("attend", 2, 2); }), "");
    EXPECT_NE(error_of([&] { nested.check("attend", 3, 3); }), "");
    EXPECT_NO_THROW(padding({5}).check("attend", 7, 1));
}

TEST(Pattern, PositionsAtTheEndsOfInt64AreSafe) {
    constexpr std::int64_t least = std::numeric_limits<std::int64_t>::min();
    constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
    using namespace patterns;
    const std::vector<Pattern> all = {causal(),
                                      window(3, 3),
                                      window(most, most),
                                      window(-1, 2),
                                      strided(5),
                                      strided(most),
                                      fixed(5, 2),
                                      fixed(most, 1),
                                      dilated(3, -1, most),
                                      dilated(2, 2, 3),
                                      padding({4}),
                                      document({{1, 1, 2}}),
                                      global_tokens({0, most}),
                                      random_blocks(3, 5, 2, 1),
                                      random_blocks(most, 1, 1, 1),
                                      blocks(most, 2, std::vector<BlockPair>{{0, 0}, {1, most}}),
                                      blocks(2, most, std::vector<BlockPair>{{most / 2, 1}, {0, 0}})};
    for (const Pattern& pattern : all) {
        for (std::int64_t i : {least, least + 1, std::int64_t{-1}, std::int64_t{0}, most - 1}) {
            for (std::int64_t begin : {least, std::int64_t{-2}, std::int64_t{1}, most - 4}) {
                std::uint8_t row[4];
                pattern.row(0, 0, i, begin, begin + 4, row);
                bool any = false;
                bool every = true;
                for (std::int64_t n = 0; n < 4; ++n) {
                    const bool allowed = pattern.allows(0, 0, i, begin + n);
                    EXPECT_EQ(row[n], allowed ? 1 : 0) << pattern.describe() << ' ' << i << ' ' << begin + n;
                    any = any || allowed;
                    every = every && allowed;
                }
                const Cover cover =
                    pattern.cover({.query_begin = i, .query_end = i + 1, .key_begin = begin, .key_end = begin + 4});
                EXPECT_TRUE(cover == Cover::some || cover == (every ? Cover::all : Cover::none))
                    << pattern.describe() << ' ' << i << ' ' << begin;
                EXPECT_TRUE(cover != Cover::none || !any) << pattern.describe() << ' ' << i << ' ' << begin;
            }
        }
    }
    EXPECT_TRUE(causal().allows(0, 0, most, least));
    EXPECT_FALSE(causal().allows(0, 0, least, most));
    EXPECT_FALSE(window(3, 3).allows(0, 0, most, least));
}

}  // namespace
}  // namespace heed::testing
