/// Frequencies of every scaling: published numbers, identities, and what is refused.
#include <heed/positions.h>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "unit/ops/positions_testing.h"

namespace heed::testing {
namespace {

using namespace rope_scaling;

double theta_of(const RopeTable& table) {
    // f_1 = theta^(-2/size)
    return std::pow(table.frequencies[1], -static_cast<double>(table.frequencies.size()));
}

TEST(RopeTable, PlainFrequencies) {
    const RopeTable table = rope_table({.size = 4, .theta = 10000});
    EXPECT_EQ(table.frequencies.size(), 2U);
    EXPECT_DOUBLE_EQ(table.frequencies[0], 1);
    EXPECT_DOUBLE_EQ(table.frequencies[1], 0.01);
    EXPECT_EQ(table.attention_factor, 1);
}

TEST(RopeTable, NtkMovesTheBase) {
    for (const auto& [factor, theta] : {std::pair{2.0, 20221.2617}, {4.0, 40889.9424}, {8.0, 82684.6226}}) {
        const RopeTable table = rope_table({.size = 128, .scaling = Ntk{factor}});
        EXPECT_NEAR(theta_of(table), theta, 1e-4 * 5);
        const RopeTable plain = rope_table({.size = 128});
        EXPECT_EQ(table.frequencies.front(), plain.frequencies.front());
        EXPECT_NEAR(plain.frequencies.back() / table.frequencies.back(), factor, 1e-9);
    }
}

TEST(RopeTable, DynamicNtkFollowsTheLength) {
    const Rope rope{.size = 128, .scaling = DynamicNtk{.factor = 2, .trained = 2048}};
    EXPECT_TRUE(depends_on_length(rope.scaling));
    for (const auto& [length, theta] :
         {std::pair{0, 10000.0}, {1024, 10000.0}, {2048, 10000.0}, {4096, 30527.7367}, {8192, 72195.8601}}) {
        EXPECT_NEAR(theta_of(rope_table(rope, length)), theta, 1e-3) << length;
    }
    EXPECT_EQ(rope_table(rope, 1024), rope_table(rope, 2048));
    EXPECT_NE(rope_table(rope, 2049), rope_table(rope, 2048));
}

TEST(RopeTable, YarnBlendsByIndex) {
    const RopeTable plain = rope_table({.size = 128});
    const RopeTable table = rope_table({.size = 128, .scaling = Yarn{.factor = 16, .trained = 4096}});
    EXPECT_NEAR(table.attention_factor, 1.2772588722, 1e-10);
    const std::pair<std::size_t, double> ratios[] = {{0, 1}, {20, 1}, {33, 0.53125}, {46, 0.0625}, {63, 0.0625}};
    for (const auto& [i, ratio] : ratios) {
        EXPECT_NEAR(table.frequencies[i] / plain.frequencies[i], ratio, 1e-12) << i;
    }
    EXPECT_LT(table.frequencies[21], plain.frequencies[21]);       // the ramp begins at 20
    EXPECT_GT(table.frequencies[45], plain.frequencies[45] / 16);  // and ends at 46

    const RopeTable deepseek = rope_table({.size = 64, .scaling = Yarn{.factor = 40, .trained = 4096}});
    EXPECT_NEAR(deepseek.frequencies[10], 0.05623413252, 1e-11);
    EXPECT_NEAR(deepseek.frequencies[16], 0.0055, 1e-12);
    EXPECT_NEAR(deepseek.frequencies[23], 3.33380358e-05, 1e-13);
    EXPECT_NEAR(deepseek.frequencies[31], 3.33380358e-06, 1e-14);

    const RopeTable qwen = rope_table({.size = 128, .theta = 1e6, .scaling = Yarn{.factor = 4, .trained = 32768}});
    EXPECT_NEAR(qwen.attention_factor, 1.1386294361, 1e-10);
    EXPECT_NEAR(qwen.frequencies[31] / std::pow(1e6, -31.0 / 64), 0.647059, 1e-6);
}

TEST(RopeTable, YarnSettings) {
    const auto factor = [](Yarn yarn) {
        yarn.trained = 4096;
        return rope_table({.size = 64, .scaling = yarn}).attention_factor;
    };
    EXPECT_EQ(factor({.factor = 4, .attention_factor = 1.3}), 1.3);
    EXPECT_EQ(factor({.factor = 40, .mscale = 1, .mscale_all_dim = 1}), 1);
    EXPECT_NEAR(factor({.factor = 40, .mscale = 0.707, .mscale_all_dim = 0.5}), 1.064468903941252, 1e-12);
    EXPECT_EQ(factor({.factor = 40, .mscale = 2}), factor({.factor = 40}));  // both or neither
    EXPECT_EQ(factor({.factor = 0.5}), 1);

    // Ends of the ramp that are not rounded: dim(32) = 10.4... for these sizes, so pair 10 stays and 11 moves less.
    const RopeTable rounded = rope_table({.size = 64, .scaling = Yarn{.factor = 40, .trained = 4096}});
    const RopeTable exact = rope_table({.size = 64, .scaling = Yarn{.factor = 40, .trained = 4096, .truncate = false}});
    EXPECT_EQ(exact.frequencies[10], rounded.frequencies[10]);
    EXPECT_GT(exact.frequencies[11], rounded.frequencies[11]);
    EXPECT_LT(exact.frequencies[22], rounded.frequencies[22]);
}

/// Where all pairs turn more often than 32 times, or none does once, transformers' ramp runs backwards: the first are
/// all interpolated, the second all kept.
TEST(RopeTable, YarnRampTurnsAroundAtTheEnds) {
    const RopeTable plain = rope_table({.size = 16, .theta = 10});
    const RopeTable longest = rope_table({.size = 16, .theta = 10, .scaling = Yarn{.factor = 4, .trained = 1 << 30}});
    const RopeTable shortest = rope_table({.size = 16, .theta = 10, .scaling = Yarn{.factor = 4, .trained = 2}});
    for (std::size_t i = 0; i < 8; ++i) { EXPECT_DOUBLE_EQ(longest.frequencies[i], plain.frequencies[i] / 4); }
    EXPECT_EQ(shortest.frequencies, plain.frequencies);
}

TEST(RopeTable, FactorOneChangesNothing) {
    const RopeTable plain = rope_table({.size = 64, .theta = 500000});
    const std::vector<double> ones(32, 1);
    const RopeScaling scalings[] = {Linear{1},
                                    Ntk{1},
                                    DynamicNtk{1, 4096},
                                    Yarn{.factor = 1, .trained = 4096},
                                    Llama3{.factor = 1, .trained = 4096},
                                    LongRope{.factor = 1, .trained = 4096, .short_factors = ones, .long_factors = ones},
                                    Proportional{}};
    for (const RopeScaling& scaling : scalings) {
        const RopeTable table = rope_table({.size = 64, .theta = 500000, .scaling = scaling}, 4096);
        EXPECT_EQ(table.attention_factor, 1) << name_of(scaling);
        for (std::size_t i = 0; i < 32; ++i) {
            EXPECT_NEAR(table.frequencies[i] / plain.frequencies[i], 1, 1e-15) << name_of(scaling) << " " << i;
        }
    }
}

TEST(RopeTable, Llama3) {
    const RopeTable plain = rope_table({.size = 128, .theta = 5e5});
    const RopeTable table = rope_table({.size = 128, .theta = 5e5, .scaling = Llama3{}});
    for (std::size_t i = 0; i < 64; ++i) {
        if (i <= 28) { EXPECT_DOUBLE_EQ(table.frequencies[i], plain.frequencies[i]) << i; }
        if (i >= 35) { EXPECT_DOUBLE_EQ(table.frequencies[i], plain.frequencies[i] / 8) << i; }
    }
    const double expected[] = {0.003211446,   0.0021665708,  0.0013718936,  0.00085675141,
                               0.00052484616, 0.00031269375, 0.00017850781, 9.5562124e-05};
    for (std::size_t i = 0; i < 8; ++i) { EXPECT_NEAR(table.frequencies[28 + i] / expected[i], 1, 2e-7) << 28 + i; }
}

TEST(RopeTable, LongRopeSwitchesAfterTheTrainedLength) {
    const LongRope scaling{.factor = 32, .trained = 4096, .short_factors = {1, 2}, .long_factors = {4, 8}};
    const Rope rope{.size = 4, .scaling = scaling};
    EXPECT_TRUE(depends_on_length(rope.scaling));
    EXPECT_EQ(rope_table(rope, 4096).frequencies, (std::vector<double>{1, 0.01 / 2}));
    EXPECT_EQ(rope_table(rope, 4097).frequencies, (std::vector<double>{0.25, 0.01 / 8}));
    EXPECT_EQ(rope_table(rope), rope_table(rope, 4096));
    EXPECT_NEAR(rope_table(rope).attention_factor, 1.1902380714238083, 1e-15);
}

TEST(RopeTable, ProportionalStopsTheTail) {
    const RopeTable plain = rope_table({.size = 16});
    const RopeTable table = rope_table({.size = 16, .scaling = Proportional{.share = 0.25, .factor = 2}});
    for (std::size_t i = 0; i < 8; ++i) { EXPECT_EQ(table.frequencies[i], i < 2 ? plain.frequencies[i] / 2 : 0) << i; }
}

TEST(RopeTable, RefusesBadValuesByName) {
    const auto refused = [](const Rope& rope, const std::string& name, const std::string& got,
                            std::int64_t length = 0) {
        const std::string text = error_of([&] { rope_table(rope, length); });
        EXPECT_TRUE(text.starts_with("[rope_table] " + name + ": expected ")) << text;
        EXPECT_TRUE(text.ends_with(", got " + got)) << text;
    };
    refused({.size = 7}, "rope.size", "7");
    refused({.size = 0}, "rope.size", "0");
    refused({.size = -2}, "rope.size", "-2");
    refused({.size = std::int64_t{1} << 40}, "rope.size", "1099511627776");
    refused({.size = 8, .theta = 0}, "rope.theta", "0");
    refused({.size = 8, .theta = std::nan("")}, "rope.theta", "nan");
    refused({.size = 8}, "length", "-1", -1);
    refused({.size = 8, .scaling = Linear{0}}, "linear.factor", "0");
    refused({.size = 8, .scaling = Linear{-2}}, "linear.factor", "-2");
    refused({.size = 8, .scaling = Ntk{0}}, "ntk.factor", "0");
    refused({.size = 2, .scaling = Ntk{2}}, "ntk: rope.size", "2");
    refused({.size = 8, .scaling = DynamicNtk{0, 10}}, "dynamic.factor", "0");
    refused({.size = 8, .scaling = DynamicNtk{2, 0}}, "dynamic.trained", "0");
    refused({.size = 8, .scaling = Yarn{.factor = -1, .trained = 10}}, "yarn.factor", "-1");
    refused({.size = 8, .scaling = Yarn{.factor = 2}}, "yarn.trained", "0");
    refused({.size = 8, .scaling = Yarn{.factor = 2, .trained = 10, .beta_fast = 1, .beta_slow = 2}}, "yarn.beta_fast",
            "1");
    refused({.size = 8, .scaling = Yarn{.factor = 2, .trained = 10, .beta_slow = 0}}, "yarn.beta_slow", "0");
    refused({.size = 8, .scaling = Yarn{.factor = 2, .trained = 10, .attention_factor = 0}}, "yarn.attention_factor",
            "0");
    refused({.size = 8, .scaling = Yarn{.factor = 2, .trained = 10, .mscale = -1}}, "yarn.mscale", "-1");
    refused({.size = 8, .theta = 1, .scaling = Yarn{.factor = 2, .trained = 10}}, "yarn: rope.theta", "1");
    refused({.size = 8, .scaling = Llama3{.factor = 0}}, "llama3.factor", "0");
    refused({.size = 8, .scaling = Llama3{.low_freq_factor = 4, .high_freq_factor = 4}}, "llama3.high_freq_factor",
            "4");
    refused({.size = 8, .scaling = LongRope{.trained = 10, .short_factors = {1, 1, 1}, .long_factors = {1, 1, 1, 1}}},
            "longrope.short_factors", "3");
    refused({.size = 4, .scaling = LongRope{.trained = 10, .short_factors = {1, 1}, .long_factors = {1, 0}}},
            "longrope.long_factors[1]", "0");
    refused(
        {.size = 4, .scaling = LongRope{.factor = 2, .trained = 1, .short_factors = {1, 1}, .long_factors = {1, 1}}},
        "longrope.trained", "1");
    refused({.size = 8, .scaling = Proportional{.share = 0}}, "proportional.share", "0");
    refused({.size = 8, .theta = 1e-308, .scaling = Linear{1e-300}}, "rope", "inf");
    refused({.size = 8, .scaling = Yarn{.factor = 1e300, .trained = 10, .mscale = 1e308, .mscale_all_dim = 1}},
            "rope: the attention factor that its settings give", "inf");
}

}  // namespace
}  // namespace heed::testing
