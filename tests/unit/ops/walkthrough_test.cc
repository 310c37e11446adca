#include <heed/walkthrough.h>

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace heed {
namespace {

const double* values(const Walkthrough& w, const char* name) { return w.find(name)->values.as<double>(); }

TEST(Walkthrough, TeachingExampleByHand) {
    Context context(1);
    for (const double scale : {1.0, 0.5}) {
        AttentionOptions options;
        if (scale == 1) { options.scale = 1; }
        const Walkthrough w = walk_through(context, teaching_example(), options);
        EXPECT_EQ(w.scale, scale);
        const double big = 1 / (1 + std::exp(-2 * scale));
        for (int n = 0; n < 4; ++n) {
            EXPECT_EQ(values(w, "scores")[n], n == 0 || n == 3 ? 2 : 0);
            EXPECT_EQ(values(w, "scaled")[n], (n == 0 || n == 3 ? 2 : 0) * scale);
            EXPECT_NEAR(values(w, "weights")[n], n == 0 || n == 3 ? big : 1 - big, 1e-15);
        }
        for (int n = 0; n < 8; ++n) {
            const bool own = (n / 4 + n) % 2 == 0;
            EXPECT_NEAR(values(w, "output")[n], own ? big : 1 - big, 1e-15);
        }
        EXPECT_LT(w.largest_difference, 1e-15);
    }
}

TEST(Walkthrough, StepsAppearWhereAskedFor) {
    Context context(1);
    const auto names = [&](const AttentionOptions& options) {
        std::string all;
        for (const WalkthroughStep& step : walk_through(context, teaching_example(), options).steps) {
            all += step.name + " ";
        }
        return all;
    };
    const std::string begin = "input queries keys values query_heads key_heads value_heads scores scaled ";
    EXPECT_EQ(names({}), begin + "weights mixed joined output ");
    const double slope = 0.5;
    AttentionOptions all;
    all.causal = true;
    all.softcap = 3;
    all.alibi_slopes = View(&slope, {1});
    all.dropout = {.p = 0.5, .seed = 0};
    EXPECT_EQ(names(all), begin + "softcap bias mask weights dropout mixed joined output ");
    EXPECT_EQ(walk_through(context, teaching_example()).find("mask"), nullptr);
}

TEST(Walkthrough, EveryOptionAgreesWithTheOperator) {
    Context context(2);
    const WalkthroughInput input = random_example(3, 7, 12, 6, 2, 5);
    const std::vector<double> slopes = {0.5, 0.25, 0.1, 0, 1, 2};
    const std::vector<double> sinks = {0, 1, -1, 2, 0.5, -3};
    const std::vector<std::int64_t> lengths = {7, 4, 0};
    std::vector<std::uint8_t> allow(49);
    std::vector<double> bias(49);
    for (std::size_t n = 0; n < 49; ++n) {
        allow[n] = n % 5 != 1;
        bias[n] = n == 10 ? -std::numeric_limits<double>::infinity() : std::sin(static_cast<double>(n));
    }
    for (int choice = 0; choice < 512; ++choice) {
        const auto chosen = [&](int bit) { return (choice >> bit & 1) != 0; };
        AttentionOptions o;
        o.causal = chosen(0);
        if (chosen(1)) { o.window = {.left = 2, .right = 1}; }
        if (chosen(2)) { o.softcap = 1.5; }
        if (chosen(3)) { o.alibi_slopes = View(slopes.data(), {6}); }
        if (chosen(4)) { o.sinks = View(sinks.data(), {6}); }
        if (chosen(5)) { o.key_lengths = View(lengths.data(), {3}); }
        if (chosen(6)) { o.allow = View(allow.data(), {1, 1, 7, 7}); }
        if (chosen(7)) { o.bias = View(bias.data(), {1, 1, 7, 7}); }
        if (chosen(8)) { o.dropout = {.p = 0.3, .seed = 9, .offset = 1, .keep = {}}; }
        const Walkthrough w = walk_through(context, input, o, choice % 3);
        ASSERT_EQ(w.largest_difference, 0) << choice;  // both are the reference in double
        ASSERT_EQ(static_cast<bool>(w.kept), chosen(8));
    }
}

TEST(Walkthrough, ShapesFollowTheHeads) {
    Context context(1);
    const Walkthrough w = walk_through(context, random_example(2, 5, 24, 4, 2, 1), {}, 1);
    EXPECT_EQ(w.batch_entry, 1);
    EXPECT_EQ(w.find("queries")->shape, (Shape{2, 5, 24}));
    EXPECT_EQ(w.find("keys")->shape, (Shape{2, 5, 12}));
    EXPECT_EQ(w.find("query_heads")->shape, (Shape{2, 4, 5, 6}));
    EXPECT_EQ(w.find("key_heads")->shape, (Shape{2, 2, 5, 6}));
    EXPECT_EQ(w.find("scores")->operands, (std::vector{Shape{2, 4, 5, 6}, Shape{2, 2, 5, 6}}));
    EXPECT_EQ(w.find("weights")->shape, (Shape{2, 4, 5, 5}));
    EXPECT_EQ(w.find("weights")->values.shape(), (Shape{4, 5, 5}));
    EXPECT_EQ(w.find("output")->shape, (Shape{2, 5, 24}));
    EXPECT_EQ(w.find("output")->values.shape(), (Shape{5, 24}));
}

TEST(Walkthrough, RandomExampleHasTheVariancesItPromises) {
    Context context(1);
    const Walkthrough w = walk_through(context, random_example(1, 50, 256, 4, 4, 3));
    for (const char* name : {"input", "queries", "keys", "values"}) {
        const Tensor& t = w.find(name)->values;
        double sum = 0, squares = 0;
        for (std::int64_t n = 0; n < t.elements(); ++n) {
            sum += t.as<double>()[n];
            squares += t.as<double>()[n] * t.as<double>()[n];
        }
        const auto count = static_cast<double>(t.elements());
        EXPECT_NEAR(sum / count, 0, 0.05) << name;
        EXPECT_NEAR(squares / count, 1, 0.1) << name;
    }
    EXPECT_EQ(random_example(1, 2, 4, 1, 0, 7).x.as<double>()[5], random_example(1, 2, 4, 1, 0, 7).x.as<double>()[5]);
    EXPECT_NE(random_example(1, 2, 4, 1, 0, 7).x.as<double>()[5], random_example(1, 2, 4, 1, 0, 8).x.as<double>()[5]);
}

std::string complaint(const WalkthroughInput& input, const AttentionOptions& options = {}, std::int64_t entry = 0) {
    Context context(1);
    try {
        walk_through(context, input, options, entry);
    } catch (const Error& error) { return error.what(); }
    return "";
}

TEST(Walkthrough, RefusesWhatDoesNotFit) {
    EXPECT_EQ(complaint({}), "[walk_through] x: expected floats of 3 axes [batch, tokens, size], got none");
    WalkthroughInput input = teaching_example();
    input.heads = 3;
    EXPECT_EQ(complaint(input), "[walk_through] wq: expected columns that divide into 3 heads, got the identity of 4");
    input.heads = 2;
    input.kv_heads = 3;
    EXPECT_EQ(complaint(input), "[walk_through] kv_heads: expected a divisor of 2 heads, got 3");
    input.kv_heads = 1;
    EXPECT_EQ(complaint(input), "[walk_through] wk: expected [4, 2], got [4, 4]");
    EXPECT_EQ(complaint(teaching_example(), {}, 1), "[walk_through] batch_entry: expected 0 to 0, got 1");
    WalkthroughInput large;
    large.x = Tensor(DType::f32, {1, 5000, 1});
    EXPECT_EQ(complaint(large),
              "[walk_through] tokens x tokens x heads x batch: expected a small example, at most "
              "16777216, got 25000000");
    EXPECT_THROW(random_example(1, 2, 10, 3, 0, 0), Error);
    EXPECT_THROW(random_example(1, 0, 10, 1, 0, 0), Error);
    EXPECT_THROW(random_example(1, 1, 1 << 20, 1, 0, 0), Error);
}

}  // namespace
}  // namespace heed
