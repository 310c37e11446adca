#include <heed/pattern.h>

#include "unit/ops/op_testing.h"

namespace heed::testing {
namespace {

using namespace patterns;

void expect_equal(const Pattern& a, const Pattern& b, const std::string& text) {
    for (std::int64_t head = 0; head < 2; ++head) {
        for (std::int64_t batch = 0; batch < 2; ++batch) {
            for (std::int64_t i = -3; i < 24; ++i) {
                for (std::int64_t j = -3; j < 24; ++j) {
                    ASSERT_EQ(a.allows(batch, head, i, j), b.allows(batch, head, i, j)) << text << ' ' << i << ' ' << j;
                }
            }
        }
    }
}

TEST(PatternParse, WhatDescribeWritesReadsBack) {
    const Pattern all[] = {Pattern(),
                           causal(),
                           window(3, 0),
                           window(-1, 2),
                           padding({7, 9}),
                           prefix({4}),
                           strided(5),
                           fixed(6, 2),
                           dilated(2, -1, 3),
                           global_tokens({0, 7}),
                           global_tokens({}),
                           random_blocks(4, 6, 2, 18446744073709551615U),
                           causal() & (window(2, 0) | global_tokens({0})),
                           (causal() & window(5, 5)) | (prefix({2}) & strided(2)),
                           per_head({causal() | strided(3), Pattern()})};
    for (const Pattern& pattern : all) {
        const std::string text = pattern.describe();
        const Pattern read = parse(text);
        EXPECT_EQ(read.describe(), text);
        expect_equal(read, pattern, text);
    }
}

TEST(PatternParse, ListsThatDescribeSumsUp) {
    expect_equal(parse("document(0*3, 1, 1,2*4 ; 5*9)"),
                 document({{0, 0, 0, 1, 1, 2, 2, 2, 2}, std::vector<std::int64_t>(9, 5)}), "document");
    expect_equal(parse("document(;3*2)"), document({{}, {3, 3}}), "document with an empty list");
    const BlockPair pairs[] = {{0, 0}, {1, 0}, {2, 1}};
    expect_equal(parse("blocks(4x6, 0:0, 1:0, 2:1)"), blocks(4, 6, pairs), "blocks");
    expect_equal(parse("random_blocks(4, 6, 2, 1)"), random_blocks(4, 6, 2, 1), "random_blocks");
}

TEST(PatternParse, TextHoldsAllOfEveryList) {
    std::vector<BlockPair> pairs;
    std::vector<std::int64_t> many;
    for (std::int64_t n = 0; n < 40; ++n) {
        pairs.push_back({n * 7 % 11, n * 5 % 13});
        many.push_back(n * n);
    }
    const Pattern all[] = {blocks(4, 6, pairs),
                           blocks(4, 6, std::span<const BlockPair>()),
                           document({{0, 0, 0, 1, 2, 2}, {}, {5, 5, -4}}),
                           global_tokens(many),
                           padding(many),
                           prefix(many) | causal(),
                           per_head({blocks(2, 2, pairs) & causal(), document({{1, 1}}), Pattern()}),
                           Pattern()};
    for (const Pattern& pattern : all) {
        const Pattern read = parse(pattern.text());
        EXPECT_EQ(read.text(), pattern.text());
        expect_equal(read, pattern, pattern.text());
    }
}

TEST(PatternParse, AndBindsTighterAndSpacesAreFree) {
    EXPECT_EQ(parse("causal|window(1,1)&strided(2)").describe(), "causal | (window(1, 1) & strided(2))");
    EXPECT_EQ(parse(" ( causal( ) )\n&\tglobal_tokens( 3 , 1 ) ").describe(), "causal & global(1, 3)");
    EXPECT_EQ(parse("everything & causal").describe(), "causal");
}

TEST(PatternParse, ErrorsSayWhereAndWhat) {
    const auto text = [](const std::string& pattern) { return error_text([&] { parse(pattern); }); };
    const std::string names =
        "a pattern (causal, window, padding, prefix, document, strided, fixed, dilated, global, random_blocks, blocks, "
        "per_head or everything)";
    EXPECT_EQ(text(""), "[patterns::parse] text: expected " + names + " at character 1, got the end");
    EXPECT_EQ(text("causal & casual"), "[patterns::parse] text: expected " + names + " at character 10, got 'casual'");
    EXPECT_EQ(text("causal window(1,1)"),
              "[patterns::parse] text: expected & or | or the end at character 8, got 'window(1,1)'");
    EXPECT_EQ(text("window(1)"), "[patterns::parse] text: expected ',' at character 9, got ')'");
    EXPECT_EQ(text("window(1, 2, 3)"), "[patterns::parse] text: expected ')' at character 12, got ', 3)'");
    EXPECT_EQ(text("(causal"), "[patterns::parse] text: expected ')' at character 8, got the end");
    EXPECT_EQ(text("strided(1.5)"), "[patterns::parse] text: expected ')' at character 10, got '.5)'");
    EXPECT_EQ(text("strided(99999999999999999999)"),
              "[patterns::parse] text: expected a whole number at character 9, got '99999999999999999999'");
    EXPECT_EQ(text("global(0, ... 40 in all)"),
              "[patterns::parse] text: expected a whole number at character 11, got '... 40 in all)'");
    // The building blocks' own errors come through.
    EXPECT_EQ(text("window(-2, 0)"), error_text([] { window(-2, 0); }));
    EXPECT_NE(text("window(-2, 0)"), "");
    EXPECT_EQ(text("document(1*-1)"), "[patterns::parse] text: count in document: expected at least 0, got -1");
    EXPECT_NE(text("document(0*9000000000000000000, 0*9000000000000000000)"), "");
    EXPECT_EQ(text("document(0*10000000) | document(0*10000000)"),
              "[patterns::parse] text: expected at most 16777216 ids in document, got more");
    EXPECT_NE(text(std::string(100000, '(')), "");
    EXPECT_EQ(text(std::string(60, '(') + "causal" + std::string(60, ')')), "");
}

TEST(PatternParse, AnyTextIsAPatternOrAnError) {
    const char* pieces[] = {"causal",     "window(", "global(", "per_head(", "document(", "blocks(", "random_blocks(",
                            "everything", "(",       ")",       ",",         "&",         "|",       ";",
                            "*",          ":",       "x",       " ",         "0",         "3",       "-1",
                            "seed",       "\xff"};
    std::mt19937 generator(1);
    int accepted = 0;
    for (int n = 0; n < 20000; ++n) {
        std::string text;
        for (auto length = generator() % 12; length > 0; --length) { text += pieces[generator() % std::size(pieces)]; }
        try {
            const Pattern pattern = parse(text);
            ++accepted;
            const std::string described = pattern.describe();
            if (described.find("list") == std::string::npos && described.find("pair") == std::string::npos) {
                EXPECT_EQ(parse(described).describe(), described) << text;
            }
        } catch (const Error&) {}
    }
    EXPECT_GT(accepted, 20);
}

}  // namespace
}  // namespace heed::testing
