#include <gtest/gtest.h>

#include <heed/pattern.h>

#include "kernel/pattern_program.h"

namespace heed {
namespace {

using namespace patterns;

/// The program must answer as the pattern does, wherever it is asked.
void expect_same(const Pattern& pattern) {
    const std::vector<std::int64_t> program = pattern_program(pattern);
    const auto words = static_cast<std::int64_t>(program.size());
    for (std::int64_t b = 0; b < 2; ++b) {
        for (std::int64_t h = 0; h < 3; ++h) {
            for (std::int64_t query = -5; query < 40; ++query) {
                for (std::int64_t key = -5; key < 40; ++key) {
                    ASSERT_EQ(run_pattern_program(program.data(), words, {b, h, query, key}),
                              pattern.allows(b, h, query, key))
                        << pattern.describe() << " b " << b << " h " << h << " query " << query << " key " << key;
                }
            }
        }
    }
}

TEST(PatternProgram, EveryBuildingBlock) {
    expect_same(causal());
    expect_same(window(3, 2));
    expect_same(padding({7, 30}));
    expect_same(prefix({4}));
    expect_same(document({{0, 0, 1, 1, 1, 0, 2, 2}, {5, 5, 5, 4}}));
    expect_same(strided(5));
    expect_same(fixed(7, 2));
    expect_same(dilated(3, 1, 4));
    expect_same(global_tokens({0, 11, 12}));
    for (std::int64_t count = 0; count <= 6; ++count) { expect_same(random_blocks(5, 6, count, 1234567)); }
    const BlockPair pairs[] = {{0, 0}, {3, 1}, {1, 2}, {1, 0}, {3, 1}};
    expect_same(blocks(4, 6, pairs));
}

TEST(PatternProgram, CombinationsAndHeads) {
    expect_same(causal() & (prefix({4, 9}) | window(5, 0) | global_tokens({2})));
    expect_same(per_head({causal(), Pattern(), window(2, 2) & strided(2)}));
    expect_same((per_head({causal(), Pattern(), fixed(4, 1)}) | document({{1, 1, 2, 2, 2}})) & window(9, 9));
}

TEST(PatternProgram, PositionsAtTheEndsOfTheirType) {
    constexpr std::int64_t far = std::int64_t{1} << 62;
    const Pattern pattern = window(3, 3) | strided(3);
    const std::vector<std::int64_t> program = pattern_program(pattern);
    for (const std::int64_t query : {-far, std::int64_t{0}, far}) {
        for (const std::int64_t key : {-far, std::int64_t{1}, far + 2}) {
            EXPECT_EQ(
                run_pattern_program(program.data(), static_cast<std::int64_t>(program.size()), {0, 0, query, key}),
                pattern.allows(0, 0, query, key));
        }
    }
}

TEST(PatternProgram, AbsentPatternHasNone) { EXPECT_TRUE(pattern_program({}).empty()); }

}  // namespace
}  // namespace heed
