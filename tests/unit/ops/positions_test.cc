/// Sinusoids, learned positions, T5's relative bias, ALiBi's slopes: published numbers, identities, gradients, errors.
#include <heed/positions.h>

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "unit/ops/positions_testing.h"

namespace heed::testing {
namespace {

void expect_refused(const std::string& start, const std::string& text) { EXPECT_TRUE(text.starts_with(start)) << text; }

// ---- Sinusoids

TEST(Sinusoids, PublishedNumbers) {
    Context context(1);
    Tensor table(DType::f32, {2, 4});
    sinusoids(context, table);
    const double expected[] = {0, 1, 0, 1, 0.841471, 0.540302, 0.0099998, 0.99995};
    for (std::int64_t n = 0; n < 8; ++n) { EXPECT_NEAR(at(table, n), expected[n], 1e-6) << n; }
}

TEST(Sinusoids, LaterRowsAreRotationsAndPairsHaveNormOne) {
    Context context(2);
    constexpr std::int64_t size = 64;
    Tensor table(DType::f64, {1000, size});
    sinusoids(context, table);
    for (const std::int64_t p : {0, 3, 700}) {
        for (std::int64_t i = 0; i < size / 2; ++i) {
            const double sine = at(table, p * size + 2 * i);
            const double cosine = at(table, p * size + 2 * i + 1);
            EXPECT_NEAR(std::hypot(sine, cosine), 1, 1e-14);
            const double angle = 250 * std::pow(10000, -static_cast<double>(i) / 32);
            EXPECT_NEAR(at(table, (p + 250) * size + 2 * i), sine * std::cos(angle) + cosine * std::sin(angle), 1e-12);
        }
    }
}

TEST(Sinusoids, VariantsOfOtherSoftware) {
    Context context(1);
    constexpr std::int64_t size = 513;
    Tensor table(DType::f64, {1, size});
    // tensor2tensor: halves, last frequency exactly 1e-4, a zero for an odd size.
    sinusoids(context, table, {.layout = Pairing::halves, .reach_base = true, .first = 1});
    EXPECT_NEAR(at(table, 255), std::sin(1e-4), 1e-16);
    EXPECT_NEAR(at(table, 511), std::cos(1e-4), 1e-15);
    EXPECT_EQ(at(table, 512), 0);
    // The paper's last one of 512 is 10000^(-510/512).
    sinusoids(context, table, {.layout = Pairing::halves, .first = 1});
    EXPECT_NEAR(at(table, 255), 1.03663e-4, 1e-9);
    Tensor smallest(DType::f32, {1, 2});
    sinusoids(context, smallest, {.reach_base = true, .first = 2});
    EXPECT_NEAR(at(smallest, 0), std::sin(2.0), 1e-7);
}

TEST(Sinusoids, FarPositionsAndExplicitOnes) {
    Context context(1);
    Tensor a(DType::f32, {3, 6});
    Tensor b(DType::f32, {3, 6});
    sinusoids(context, a, {.first = 1000000});
    EXPECT_NEAR(at(a, 0), std::sin(1e6), 1e-7);
    const std::int32_t positions[] = {1000000, 1000001, 1000002};
    sinusoids(context, b, {.positions = View(positions, {3})});
    EXPECT_EQ(std::memcmp(a.data(), b.data(), a.bytes()), 0);
}

TEST(Sinusoids, Refuses) {
    Context context(1);
    Tensor table(DType::f32, {3, 6});
    const std::int32_t positions[] = {0, 1};
    expect_refused("[sinusoids] base: expected a positive number, got 0",
                   error_of([&] { sinusoids(context, table, {.base = 0}); }));
    expect_refused("[sinusoids] out: expected 2 axes [T,d], got none",
                   error_of([&] { sinusoids(context, MutableView()); }));
    expect_refused("[sinusoids] positions: expected [1, 3] or [3], got [2]",
                   error_of([&] { sinusoids(context, table, {.positions = View(positions, {2})}); }));
}

// ---- Learned positions

TEST(LearnedPositions, LooksUpWithOffsetAndAdds) {
    Context context(2);
    const Tensor table = noise(DType::bf16, {10, 5});
    const std::int64_t positions[] = {0, 7, 3, 1, 1, 6};
    Tensor out(DType::f32, {2, 3, 5});
    learned_positions(context, table, View(positions, {2, 3}), out, {.offset = 2});
    for (std::int64_t n = 0; n < 30; ++n) { EXPECT_EQ(at(out, n), at(table, (positions[n / 5] + 2) * 5 + n % 5)); }
    const Tensor once = out.clone();
    learned_positions(context, table, View(positions, {2, 3}), out, {.offset = 2, .add = true});
    for (std::int64_t n = 0; n < 30; ++n) { EXPECT_EQ(at(out, n), 2 * at(once, n)); }
}

TEST(LearnedPositions, BackwardAddsUpTheRowsUsed) {
    const std::int64_t positions[] = {0, 7, 3, 1, 1, 1};
    const Tensor dout = noise(DType::f32, {2, 3, 4});
    Context context(3);
    Tensor dtable = noise(DType::f64, {9, 4}, 8);  // what was there is replaced
    learned_positions_backward(context, dout, View(positions, {2, 3}), dtable, {.offset = 1});
    // Differences of the linear lookup are exact: d(sum(dout * out)) / dtable.
    Tensor table(DType::f64, {9, 4});
    Tensor out(DType::f64, {2, 3, 4});
    for (std::int64_t n = 0; n < 36; ++n) {
        table.as<double>()[n] = 1;
        learned_positions(context, table, View(positions, {2, 3}), out, {.offset = 1});
        table.as<double>()[n] = 0;
        double loss = 0;
        for (std::int64_t m = 0; m < 24; ++m) { loss += at(out, m) * at(dout, m); }
        EXPECT_NEAR(at(dtable, n), loss, 1e-15) << n;
    }
    Tensor twice = dtable.clone();
    learned_positions_backward(context, dout, View(positions, {2, 3}), twice, {.offset = 1, .add = true});
    for (std::int64_t n = 0; n < 36; ++n) { EXPECT_DOUBLE_EQ(at(twice, n), 2 * at(dtable, n)); }
}

TEST(LearnedPositions, Refuses) {
    Context context(1);
    const Tensor table = noise(DType::f32, {10, 5});
    Tensor out(DType::f32, {1, 2, 5});
    const std::int64_t beyond[] = {0, 8};
    const std::int64_t before[] = {0, -3};
    expect_refused("[learned_positions] positions: expected rows of the table, -2 to 7, got 8",
                   error_of([&] { learned_positions(context, table, View(beyond, {2}), out, {.offset = 2}); }));
    expect_refused("[learned_positions] positions: expected rows of the table, -2 to 7, got -3",
                   error_of([&] { learned_positions(context, table, View(before, {2}), out, {.offset = 2}); }));
    expect_refused("[learned_positions] positions: expected [B,T] or [T], got none",
                   error_of([&] { learned_positions(context, table, View(), out); }));
    expect_refused("[learned_positions] out: expected [1, 2, 5], got [1, 2, 4]",
                   error_of([&] { learned_positions(context, table, View(beyond, {2}), out.view().slice(2, 0, 4)); }));
    Tensor dtable(DType::bf16, {10, 5});
    expect_refused("[learned_positions_backward] dtable: expected f32 or f64, got bf16",
                   error_of([&] { learned_positions_backward(context, out, View(beyond, {2}), dtable); }));
}

// ---- T5's relative bias

TEST(RelativeBias, PublishedBuckets) {
    const std::pair<int, int> bidirectional[] = {
        {-200, 15}, {-128, 15}, {-64, 14}, {-32, 12}, {-16, 10}, {-12, 9}, {-9, 8},  {-8, 8},  {-7, 7},  {-1, 1},
        {0, 0},     {1, 17},    {7, 23},   {8, 24},   {12, 25},  {16, 26}, {32, 28}, {64, 30}, {128, 31}};
    for (const auto& [distance, bucket] : bidirectional) { EXPECT_EQ(relative_bucket(distance), bucket) << distance; }
    const std::pair<int, int> causal[] = {{0, 0},   {15, 15}, {16, 16},  {17, 16}, {20, 17},
                                          {32, 21}, {64, 26}, {127, 31}, {128, 31}};
    for (const auto& [distance, bucket] : causal) {
        EXPECT_EQ(relative_bucket(-distance, {.bidirectional = false}), bucket) << distance;
        EXPECT_EQ(relative_bucket(distance, {.bidirectional = false}), 0);
    }
    EXPECT_EQ(relative_bucket(std::numeric_limits<std::int64_t>::min()), 15);
    EXPECT_EQ(relative_bucket(std::numeric_limits<std::int64_t>::max()), 31);
}

TEST(RelativeBias, BucketsNeverDecreaseWithDistance) {
    for (const RelativeBuckets& rule :
         {RelativeBuckets{}, RelativeBuckets{6, 200, false}, RelativeBuckets{64, 100000, true}}) {
        std::int64_t last = 0;
        for (std::int64_t d = 0; d < 200000; d += 1 + d / 50) {
            const std::int64_t bucket = relative_bucket(-d, rule);
            ASSERT_GE(bucket, last);
            ASSERT_LT(bucket, rule.count);
            last = bucket;
        }
    }
}

TEST(RelativeBias, BiasIsTheTableAtTheBucket) {
    Context context(3);
    const Tensor table = noise(DType::f32, {32, 3});
    Tensor bias(DType::f32, {1, 3, 20, 300});
    relative_bias(context, table, bias);  // bottom right: query 0 stands at 280
    for (std::int64_t n = 0; n < bias.elements(); ++n) {
        const std::int64_t j = n % 300, i = n / 300 % 20, h = n / 6000;
        ASSERT_EQ(at(bias, n), at(table, relative_bucket(j - (i + 280)) * 3 + h)) << i << " " << j;
    }
    // Decoding: one query against all keys is the last row.
    Tensor row(DType::f32, {1, 3, 1, 300});
    relative_bias(context, table, row);
    for (std::int64_t h = 0; h < 3; ++h) {
        EXPECT_EQ(std::memcmp(row.as<float>() + h * 300, bias.as<float>() + (h * 20 + 19) * 300, 1200), 0);
    }
    // The same by explicit positions.
    std::vector<std::int64_t> queries(20), keys(300);
    std::iota(queries.begin(), queries.end(), 5280);
    std::iota(keys.begin(), keys.end(), 5000);
    Tensor shifted(DType::f32, bias.shape());
    relative_bias(context, table, shifted,
                  {.query_positions = View(queries.data(), {20}), .key_positions = View(keys.data(), {1, 300})});
    EXPECT_EQ(std::memcmp(bias.data(), shifted.data(), bias.bytes()), 0);
}

TEST(RelativeBias, BackwardIsTheTransposeOfForward) {
    Context context(2);
    const RelativeBiasOptions options{.buckets = {.count = 8, .max_distance = 20}, .align = Align::top_left};
    const Tensor dbias = noise(DType::f32, {2, 2, 9, 31});
    Tensor dtable(DType::f64, {8, 2});
    relative_bias_backward(context, dbias, dtable, options);
    Tensor table(DType::f64, {8, 2});
    Tensor bias(DType::f64, dbias.shape());
    for (std::int64_t n = 0; n < 16; ++n) {
        table.as<double>()[n] = 1;
        relative_bias(context, table, bias, options);
        table.as<double>()[n] = 0;
        double loss = 0;
        for (std::int64_t m = 0; m < bias.elements(); ++m) { loss += at(bias, m) * at(dbias, m); }
        EXPECT_NEAR(at(dtable, n), loss, 1e-12) << n;
    }
}

TEST(RelativeBias, SameBitsForAnyThreads) {
    Context one(1), four(4);
    const Tensor dbias = noise(DType::f32, {1, 8, 64, 64});
    Tensor a(DType::f32, {32, 8}), b(DType::f32, {32, 8});
    relative_bias_backward(one, dbias, a);
    relative_bias_backward(four, dbias, b);
    EXPECT_EQ(std::memcmp(a.data(), b.data(), a.bytes()), 0);
}

TEST(RelativeBias, Refuses) {
    Context context(1);
    const Tensor table = noise(DType::f32, {32, 3});
    Tensor bias(DType::f32, {1, 3, 4, 4});
    Tensor other(DType::f32, {1, 2, 4, 4});
    expect_refused("[relative_bucket] buckets.count: expected an even number from 4 to 2^30, got 7",
                   error_of([&] { static_cast<void>(relative_bucket(0, {.count = 7})); }));
    expect_refused("[relative_bucket] buckets.max_distance: expected more than the 16 distances", error_of([&] {
                       static_cast<void>(relative_bucket(0, {.max_distance = 16, .bidirectional = false}));
                   }));
    expect_refused("[relative_bias] table: expected [32, 2], got [32, 3]",
                   error_of([&] { relative_bias(context, table, other); }));
    const std::int64_t positions[] = {0, 1, 2};
    expect_refused("[relative_bias] query_positions: expected [1, 4] or [4], got [3]",
                   error_of([&] { relative_bias(context, table, bias, {.query_positions = View(positions, {3})}); }));
    expect_refused("[relative_bias_backward] dbias: expected 4 axes", error_of([&] {
                       Tensor dtable(DType::f32, {32, 3});
                       relative_bias_backward(context, table, dtable);
                   }));
}

// ---- ALiBi

TEST(Alibi, PublishedSlopes) {
    const auto expect = [](std::int64_t heads, const std::vector<double>& expected) {
        const std::vector<double> slopes = alibi_slopes(heads);
        ASSERT_EQ(slopes.size(), expected.size());
        for (std::size_t h = 0; h < slopes.size(); ++h) {
            EXPECT_NEAR(slopes[h], expected[h], 1e-6) << heads << " " << h;
        }
    };
    const std::vector<double> eight = {0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625};
    expect(8, eight);
    expect(6, {0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125});
    std::vector<double> twelve = eight;
    twelve.insert(twelve.end(), {0.707107, 0.353553, 0.176777, 0.0883883});
    expect(12, twelve);
    expect(1, {0.00390625});
}

TEST(Alibi, ExtraHeadsComeFromTheDoubledSeries) {
    for (const std::int64_t heads : {3, 5, 7, 20, 33, 100}) {
        const std::vector<double> slopes = alibi_slopes(heads);
        std::int64_t power = 1;
        while (2 * power <= heads) { power *= 2; }
        const std::vector<double> doubled = alibi_slopes(2 * power);
        for (std::int64_t h = power; h < heads; ++h) {
            EXPECT_DOUBLE_EQ(slopes[static_cast<std::size_t>(h)], doubled[static_cast<std::size_t>(2 * (h - power))]);
        }
    }
}

TEST(Alibi, Refuses) {
    expect_refused("[alibi_slopes] heads: expected 1 to 2^20, got 0", error_of([] { alibi_slopes(0); }));
    expect_refused("[alibi_slopes] max_bias: expected a positive number", error_of([] { alibi_slopes(8, 0); }));
}

}  // namespace
}  // namespace heed::testing
