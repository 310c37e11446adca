/// Numbers known beforehand, dropout, empty sizes, hidden values, and how a kernel is chosen.

#include "unit/ops/attention_call.h"

#include <cstdlib>

namespace heed::testing {
namespace {

using AttentionValues = EveryKernel;
INSTANTIATE_TEST_SUITE_P(Kernels, AttentionValues, ::testing::ValuesIn(EveryKernel::names()), EveryKernel::label);

Call plain_call(DType dtype, const std::string& kernel, const Shape& shape, const std::vector<double>& q,
                const std::vector<double>& k, const std::vector<double>& v) {
    Call call;
    call.q = filled(dtype, {1, 1, shape[0], shape[2]}, q);
    call.k = filled(dtype, {1, 1, shape[1], shape[2]}, k);
    call.v = filled(dtype, {1, 1, shape[1], shape[3]}, v);
    call.options.kernel = kernel;
    return call;
}

TEST_P(AttentionValues, TwoTokensOfTheTextbook) {
    const std::vector<double> x{1, 0, 1, 0, 0, 1, 0, 1};
    for (const bool scaled : {false, true}) {
        Call call = plain_call(dtype(), GetParam(), {2, 2, 4, 4}, x, x, x);
        if (!scaled) { call.options.scale = 1; }
        call.forward(context);
        const double near = scaled ? 0.7310585786 : 0.8807970780;
        const double far = scaled ? 0.2689414214 : 0.1192029220;
        const double tolerance = wide() ? 1e-10 : 2e-7;
        for (std::int64_t c = 0; c < 4; ++c) {
            EXPECT_NEAR(number(call.out, c), c % 2 == 0 ? near : far, tolerance);
            EXPECT_NEAR(number(call.out, 4 + c), c % 2 == 0 ? far : near, tolerance);
        }
        const Tensor weights = call.weights(context);
        EXPECT_NEAR(number(weights, 0), near, tolerance);
        EXPECT_NEAR(number(weights, 1), far, tolerance);
    }
}

TEST_P(AttentionValues, SoftmaxOfOneTwoThree) {
    Call call = plain_call(dtype(), GetParam(), {1, 3, 1, 3}, {1}, {1, 2, 3}, {1, 0, 0, 0, 1, 0, 0, 0, 1});
    call.forward(context);
    const double tolerance = wide() ? 1e-10 : 3e-7;
    EXPECT_NEAR(number(call.out, 0), 0.0900305732, tolerance);
    EXPECT_NEAR(number(call.out, 1), 0.2447284711, tolerance);
    EXPECT_NEAR(number(call.out, 2), 0.6652409558, tolerance);
    EXPECT_NEAR(number(call.lse, 0), 3.4076059644, 3 * tolerance);
}

TEST_P(AttentionValues, TwoScoresMergeAsPublished) {
    Call call = plain_call(dtype(), GetParam(), {1, 2, 1, 1}, {1}, {1.3, 0.4}, {2, -1});
    call.forward(context);
    const double tolerance = wide() ? 1e-10 : 5e-7;
    EXPECT_NEAR(number(call.out, 0), 1.1328485079, tolerance);
    EXPECT_NEAR(number(call.lse, 0), 1.6411538747, tolerance);
}

TEST_P(AttentionValues, ARowThatSeesNothingWithASinkHasTheSinkAsItsLse) {
    Call call = this->call({.T = 6, .S = 2});
    const Tensor sinks = filled(DType::f64, {4}, {0.5, -1.25, 2, 0});
    call.options.sinks = sinks;
    call.options.causal = true;
    call.forward(context);
    for (std::int64_t row = 0; row < call.lse.elements(); ++row) {
        if (row % 6 >= 4) { continue; }
        ASSERT_NEAR(number(call.lse, row), number(sinks, row / 6 % 4), tolerance());
        for (std::int64_t e = 0; e < 6; ++e) { ASSERT_EQ(number(call.out, row * 6 + e), 0); }
    }
}

TEST_P(AttentionValues, HugeAndEqualScores) {
    // Equal scores of any size: the mean of the values. One score far above the others: its value.
    for (const double size : {0.0, 1e4, -1e4}) {
        std::vector<double> v;
        for (int n = 0; n < 40; ++n) { v.push_back(n); }
        Call call = plain_call(dtype(), GetParam(), {1, 40, 1, 1}, {size}, std::vector<double>(40, 1.0), v);
        call.options.scale = 1;
        call.forward(context);
        EXPECT_NEAR(number(call.out, 0), 19.5, 40 * tolerance());
        std::vector<double> k(40, -1.0);
        k[7] = 1;
        Call peak = plain_call(dtype(), GetParam(), {1, 40, 1, 1}, {1e4}, k, v);
        peak.options.scale = 1;
        peak.forward(context);
        EXPECT_NEAR(number(peak.out, 0), 7, 7 * tolerance());
        EXPECT_NEAR(number(peak.lse, 0), 1e4, 1e4 * tolerance());
    }
}

TEST_P(AttentionValues, EmptySizes) {
    for (const Sizes& sizes : {Sizes{.B = 0}, Sizes{.T = 0}, Sizes{.S = 0}}) {
        Call call = this->call(sizes);
        const Tensor sinks = filled(DType::f32, {4}, {0, 1, 2, 3});
        for (const bool with_sinks : {false, true}) {
            if (with_sinks) { call.options.sinks = sinks; }
            call.both(context);
            for (std::int64_t n = 0; n < call.out.elements(); ++n) { ASSERT_EQ(number(call.out, n), 0); }
            for (std::int64_t n = 0; n < call.lse.elements(); ++n) {
                if (with_sinks) {
                    ASSERT_NEAR(number(call.lse, n), static_cast<double>(n / 7 % 4), tolerance());
                } else {
                    ASSERT_EQ(number(call.lse, n), -infinity);
                }
            }
            for (std::int64_t n = 0; n < call.dq.elements(); ++n) { ASSERT_EQ(number(call.dq, n), 0); }
            for (std::int64_t n = 0; n < call.dk.elements(); ++n) { ASSERT_EQ(number(call.dk, n), 0); }
        }
    }
}

TEST_P(AttentionValues, ManyPlanes) {
    Call call = this->call({.B = 700, .H = 48, .G = 16, .T = 1, .S = 1, .D = 1, .E = 1});
    call.forward(context);
    for (std::int64_t n = 0; n < call.out.elements(); ++n) {
        ASSERT_NEAR(number(call.out, n), number(call.v, n / 48 * 16 + n % 48 / 3), tolerance());
    }
}

TEST_P(AttentionValues, WithoutLse) {
    Call call = this->call({.T = 33, .S = 65});
    call.forward(context);
    Tensor out(dtype(), call.out.shape());
    attend(context, call.q, call.k, call.v, out, call.options);
    expect_same_bits("out", out, call.out);
}

/// [B,H,T,S] of 0 and 1: weights are all equal and v is the identity, so out shows which weights were kept.
Tensor kept_elements(Context& context, const std::string& kernel, DType dtype, const Sizes& s,
                     const AttentionDropout& dropout) {
    Call call;
    call.q = Tensor(dtype, {s.B, s.H, s.T, 1});
    call.k = Tensor(dtype, {s.B, s.H, s.S, 1});
    call.v = Tensor(dtype, {s.B, s.H, s.S, s.S});
    for (std::int64_t row = 0; row < s.B * s.H * s.S; ++row) {
        write_number(dtype, call.v.data(), row * s.S + row % s.S, static_cast<double>(s.S) * (1 - dropout.p));
    }
    call.options.kernel = kernel;
    call.options.dropout = dropout;
    call.forward(context);
    return std::move(call.out);
}

TEST_P(AttentionValues, DropoutKeepsWhatTheGeneratorSays) {
    // Sizes that end inside any tile: the mask is a matter of coordinates alone.
    const Sizes s{.B = 2, .H = 3, .G = 3, .T = 37, .S = 83, .D = 1, .E = 83};
    const AttentionDropout dropout{.p = 0.3, .seed = 0x123456789ABCDEF0, .offset = 17};
    const Tensor kept = kept_elements(context, GetParam(), dtype(), s, dropout);
    for (std::int64_t n = 0; n < kept.elements(); ++n) {
        const auto j = static_cast<std::uint32_t>(n % 83);
        const auto i = static_cast<std::uint32_t>(n / 83 % 37);
        const auto plane = static_cast<std::uint32_t>(n / (83 * 37));
        const bool keep = dropout_word(*dropout.seed, dropout.offset, plane, i, j) >= dropout_threshold(0.3);
        ASSERT_NEAR(number(kept, n), keep ? 1 : 0, 2e-6) << n;
    }
}

TEST_P(AttentionValues, DropoutKeepsTheRightShare) {
    const Sizes s{.B = 1, .H = 4, .G = 4, .T = 100, .S = 100, .D = 1, .E = 100};
    const auto mask = [&](double p, std::uint64_t seed, std::uint32_t offset) {
        const Tensor kept = kept_elements(context, GetParam(), dtype(), s, {.p = p, .seed = seed, .offset = offset});
        std::vector<int> bits;
        for (std::int64_t n = 0; n < kept.elements(); ++n) { bits.push_back(number(kept, n) > 0.5 ? 1 : 0); }
        return bits;
    };
    for (const double p : {0.1, 0.5, 0.9}) {
        const std::vector<int> bits = mask(p, 99, 0);
        double count = 0;
        for (const int bit : bits) { count += bit; }
        const auto total = static_cast<double>(bits.size());
        EXPECT_NEAR(count, (1 - p) * total, 5 * std::sqrt(p * (1 - p) * total)) << p;
    }
    // Two masks agree at half of the places where they are independent: other heads, rows, seeds, offsets.
    const std::vector<int> bits = mask(0.5, 7, 1);
    const auto expect_independent = [](const char* what, const std::vector<int>& a, const std::vector<int>& b,
                                       std::size_t shift) {
        double agree = 0;
        double total = 0;
        for (std::size_t n = 0; n + shift < a.size(); ++n) {
            agree += a[n] == b[n + shift] ? 1 : 0;
            total += 1;
        }
        EXPECT_NEAR(agree, total / 2, 5 * std::sqrt(total / 4)) << what;
    };
    expect_independent("columns", bits, bits, 1);
    expect_independent("rows", bits, bits, 100);
    expect_independent("heads", bits, bits, 100 * 100);
    expect_independent("seeds", bits, mask(0.5, 8, 1), 0);
    expect_independent("offsets", bits, mask(0.5, 7, 2), 0);
}

TEST_P(AttentionValues, AnExplicitMaskOfTheGeneratorsBitsIsTheGenerator) {
    Call a = this->call({.T = 20, .S = 30});
    a.options.dropout = {.p = 0.25, .seed = 5, .offset = 2};
    a.both(context);
    Tensor keep(DType::u8, {2, 4, 20, 30});
    for (std::int64_t n = 0; n < keep.elements(); ++n) {
        const auto word = [](std::int64_t x) { return static_cast<std::uint32_t>(x); };
        keep.as<std::uint8_t>()[n] =
            dropout_word(5, 2, word(n / 600), word(n / 30 % 20), word(n % 30)) >= dropout_threshold(0.25) ? 1 : 0;
    }
    Call b = this->call({.T = 20, .S = 30});
    b.options.dropout = {.p = 0.25, .keep = std::as_const(keep)};
    b.both(context);
    expect_same_bits("out", b.out, a.out);
    expect_same_bits("dq", b.dq, a.dq);
    expect_same_bits("dv", b.dv, a.dv);
}

TEST(AttentionChoice, TheReferenceIsLastAndTakesEverything) {
    const std::vector<std::string> names = attention_kernels();
    ASSERT_FALSE(names.empty());
    EXPECT_EQ(names.back(), "reference");
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
        const Explanation explanation = explain({.dtype = dtype});
        ASSERT_EQ(explanation.verdicts.size(), names.size());
        EXPECT_TRUE(explanation.verdicts.back().fits);
        bool first = true;
        for (const KernelVerdict& verdict : explanation.verdicts) {
            EXPECT_FALSE(verdict.reason.empty()) << verdict.kernel;
            if (verdict.fits && first) { EXPECT_EQ(verdict.kernel, explanation.kernel); }
            first = first && !verdict.fits;
        }
    }
}

/// Rows for some problems only come before the row of their instruction set, and are forced by name or with it.
TEST(AttentionChoice, DecodingShortHeadsAndTilesAreRows) {
    const std::string set = explain({.queries = 300, .keys = 300}).kernel;
    ASSERT_EQ(set.rfind("cpu-", 0), 0U);
    ASSERT_EQ(set.find('/'), std::string::npos);
    const AttentionShape step{.batch = 3, .heads = 4, .kv_heads = 2, .queries = 1, .keys = 300};
    const AttentionShape little{.batch = 3, .heads = 2, .kv_heads = 2, .queries = 20, .keys = 20};
    EXPECT_EQ(explain(step).kernel, set + "/decode");
    EXPECT_EQ(explain(little).kernel, set + "/short");
    EXPECT_EQ(explain(step, {.kernel = set}).kernel, set + "/decode");
    EXPECT_EQ(explain(step, {.kernel = set + "/tiles"}).kernel, set + "/tiles");
    EXPECT_EQ(explain(little, {.softcap = 5}).kernel, set);
    try {
        explain(little, {.kernel = set + "/decode"});
        ADD_FAILURE() << "no error";
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("for a few rows of queries in every entry"), std::string::npos)
            << error.what();
    }
    const std::int64_t queries[] = {1, 20};
    EXPECT_EQ(explain({.batch = 2, .queries = 20, .keys = 300}, {.query_lengths = View(queries, {2})}).kernel, set);

    // Strides decide, too: keys of every second column are not rows of floats.
    Context context(2);
    const Tensor q(DType::f32, {1, 2, 20, 16}), wide(DType::f32, {1, 2, 20, 32});
    Tensor out(DType::f32, {1, 2, 20, 16});
    const View strided(wide.dtype(), wide.data(), q.shape(), Shape{1280, 640, 32, 2});
    for (const auto& [keys, expected] : {std::pair(View(q), set + "/short"), std::pair(strided, set)}) {
        const auto explained = explain(context, [&](Context& dry) { attend(dry, q, keys, q, out); });
        EXPECT_EQ(explained.at(0).kernel, expected);
    }
}

/// Tiles forced upon entries of a few rows, where nobody would use them, give what decoding gives, to rounding.
TEST(AttentionChoice, TilesTakeAFewRowsWhenForced) {
    Random random(5);
    const Tensor q = random_tensor(random, DType::f32, {2, 4, 1, 64}),
                 k = random_tensor(random, DType::f32, {2, 2, 90, 64});
    Tensor decoded(DType::f32, q.shape()), tiled(DType::f32, q.shape());
    const std::string set = explain({.queries = 300, .keys = 300}).kernel;
    Context context(2);
    attend(context, q, k, k, decoded, {.kernel = set + "/decode"});
    attend(context, q, k, k, tiled, {.kernel = set + "/tiles"});
    expect_near("out", tiled, decoded, 1e-6);
}

TEST(AttentionChoice, AnOptionOrTheEnvironmentForcesAKernel) {
    const Explanation by_option = explain({}, {.kernel = "reference"});
    EXPECT_EQ(by_option.kernel, "reference");
    EXPECT_EQ(by_option.verdicts.back().reason.rfind("runs", 0), 0U);
    ASSERT_EQ(setenv("HEED_KERNEL", "reference", 1), 0);
    EXPECT_EQ(explain({}).kernel, "reference");
    ASSERT_EQ(setenv("HEED_KERNEL", "abacus", 1), 0);
    EXPECT_EQ(explain({}, {.kernel = "reference"}).kernel, "reference");  // the option comes first
    try {
        explain({});
        ADD_FAILURE() << "no error";
    } catch (const Error& error) {
        const std::string text = error.what();
        EXPECT_EQ(text.rfind("[explain] HEED_KERNEL: expected one of ", 0), 0U) << text;
        EXPECT_NE(text.find("got abacus"), std::string::npos) << text;
    }
    ASSERT_EQ(unsetenv("HEED_KERNEL"), 0);
}

TEST(AttentionChoice, AKernelThatDoesNotFitSaysWhy) {
    for (const KernelVerdict& verdict : explain({.dtype = DType::f64}, {.kernel = "reference"}).verdicts) {
        if (verdict.fits) { continue; }
        try {
            explain({.dtype = DType::f64}, {.kernel = verdict.kernel});
            ADD_FAILURE() << verdict.kernel << ": no error";
        } catch (const Error& error) {
            const std::string text = error.what();
            EXPECT_EQ(text.rfind("[explain] kernel: expected a kernel that fits (" + verdict.kernel, 0), 0U) << text;
            EXPECT_NE(text.find(verdict.reason), std::string::npos) << text;
        }
    }
}

}  // namespace
}  // namespace heed::testing
