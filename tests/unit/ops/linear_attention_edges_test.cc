// What lies at the edges of linear attention: threads, lengths, sizes of 0, NaN, wrong calls.
#include "cpu/instruction_sets.h"
#include "support/numbers.h"
#include "unit/ops/linear_attention_testing.h"

#include <cstdlib>

namespace heed {
namespace {

using namespace testing_linear;

/// The message of the Error that `call` throws.
template <class Call>
std::string message_of(Call&& call) {
    try {
        call();
    } catch (const Error& error) { return error.what(); }
    return "no error";
}

TEST(LinearAttentionEdges, SameBitsForAnyNumberOfThreads) {
    // One head (threads share its chunks), and more heads than threads.
    for (const std::int64_t heads : {1, 9}) {
        for (const bool causal : {true, false}) {
            const Sizes size{
                .B = 1, .H = heads, .G = heads, .T = 1500, .S = 1500, .D = 32, .E = 32, .N = heads, .F = 32};
            const Inputs in = Inputs(size).as(DType::f32);
            Context one(1);
            const Results expected = run(one, in, {.causal = causal}, causal, true);
            for (const int threads : {2, 7}) {
                Context several(threads);
                const Results got = run(several, in, {.causal = causal}, causal, true);
                const auto a = got.all();
                const auto b = expected.all();
                for (std::size_t n = 0; n < a.size(); ++n) {
                    EXPECT_TRUE(same_bits(*a[n].second, *b[n].second))
                        << a[n].first << ", " << threads << " threads, " << heads << " heads";
                }
            }
        }
    }
}

TEST(LinearAttentionEdges, EveryInstructionSetEqualsTheReference) {
    Context context(1);
    const Sizes size{.B = 1, .H = 4, .G = 2, .T = 75, .S = 75, .D = 18, .E = 33, .N = 4, .F = 18};
    const Inputs in(size);
    const Inputs narrow = in.as(DType::f32);
    std::vector<std::string> kernels = {"reference"};
    for (const cpu::InstructionSet& set : cpu::instruction_sets()) {
        if (set.missing == nullptr) { kernels.push_back("cpu-" + std::string(set.name)); }
    }
    EXPECT_GE(kernels.size(), 2U);
    for (const std::string& kernel : kernels) {
        for (const FeatureMap feature : {FeatureMap::elu_plus_one, FeatureMap::relu}) {
            const LinearAttentionOptions options{.feature = feature, .chunk = 31};
            const Results expected = run(context, in, {.feature = feature, .form = LinearForm::quadratic}, true, true);
            Context forced(1);
            forced.set_kernel(kernel);
            expect_near(run(forced, narrow, options, true, true), expected, 2e-5, kernel);
        }
    }
}

TEST(LinearAttentionEdges, SameBitsWhateverTheNeighbours) {
    Context context(2);
    const Sizes size{.B = 3, .H = 2, .G = 2, .T = 700, .S = 700, .D = 32, .E = 32, .N = 2, .F = 32};
    const Inputs in = Inputs(size).as(DType::f32);
    const Results all = run(context, in, {}, false, false);
    Inputs alone(Sizes{.B = 1, .H = 2, .G = 2, .T = 700, .S = 700, .D = 32, .E = 32, .N = 2, .F = 32});
    const auto entry = [](const Tensor& x) { return Tensor::copy_of(x.view().slice(0, 1, 2)); };
    alone.q = entry(in.q);
    alone.k = entry(in.k);
    alone.v = entry(in.v);
    alone.dout = entry(in.dout);
    const Results single = run(context, alone, {}, false, false);
    EXPECT_TRUE(same_bits(single.out, entry(all.out)));
    EXPECT_TRUE(same_bits(single.dq, entry(all.dq)));
    EXPECT_TRUE(same_bits(single.dk, entry(all.dk)));
    EXPECT_TRUE(same_bits(single.dv, entry(all.dv)));
}

TEST(LinearAttentionEdges, LengthsHideWhatLiesBeyond) {
    Context context(1);
    for (const bool causal : {true, false}) {
        for (const DType dtype : {DType::f32, DType::f64}) {
            const Sizes size{.B = 3, .H = 2, .G = 1, .T = 40, .S = 40, .D = 8, .E = 8, .N = 1, .F = 8};
            Inputs in = Inputs(size).as(dtype);
            const std::vector<std::int64_t> lengths = {40, 17, 0};
            const auto spoil = [&](Tensor& x) {
                const std::int64_t row = x.shape()[3];
                for (std::int64_t b = 0; b < 3; ++b) {
                    for (std::int64_t t = lengths[static_cast<std::size_t>(b)]; t < 40; ++t) {
                        for (std::int64_t c = 0; c < row; ++c) {
                            const std::int64_t at = (b * 40 + t) * row + c;
                            if (dtype == DType::f32) {
                                x.as<float>()[at] = std::numeric_limits<float>::quiet_NaN();
                            } else {
                                x.as<double>()[at] = testing::infinity;
                            }
                        }
                    }
                }
            };
            spoil(in.k);
            spoil(in.v);
            const LinearAttentionOptions options{
                .causal = causal, .key_lengths = View(lengths.data(), {3}), .chunk = 16};
            const Results r = run(context, in, options, false, true);
            // Entry 1 is the sequence of 17 tokens.
            Inputs shorter(Sizes{.B = 1, .H = 2, .G = 1, .T = 17, .S = 17, .D = 8, .E = 8, .N = 1, .F = 8});
            const std::int64_t queries = causal ? 17 : 40;
            const auto part = [](const Tensor& x, std::int64_t rows) {
                return Tensor::copy_of(x.view().slice(0, 1, 2).slice(2, 0, rows));
            };
            const auto entry = [](const Tensor& x) { return Tensor::copy_of(x.view().slice(0, 1, 2)); };
            shorter.q = part(in.q, queries);
            shorter.k = part(in.k, 17);
            shorter.v = part(in.v, 17);
            shorter.dout = part(in.dout, queries);
            shorter.s = entry(in.s);
            shorter.z = entry(in.z);
            shorter.ds = entry(in.ds);
            shorter.dz = entry(in.dz);
            const Results expected = run(context, shorter, {.causal = causal, .chunk = 16}, false, true);
            EXPECT_LE(distance(part(r.out, queries), expected.out), 1e-6);
            EXPECT_LE(distance(part(r.dq, queries), expected.dq), 1e-6);
            EXPECT_LE(distance(part(r.dk, 17), expected.dk), 1e-6);
            EXPECT_LE(distance(part(r.dv, 17), expected.dv), 1e-6);
            EXPECT_LE(distance(entry(r.s), expected.s), 1e-6);
            EXPECT_LE(distance(entry(r.ds), expected.ds), 1e-6);
            for (const Tensor* gradient : {&r.dk, &r.dv}) {
                const Tensor wide = gradient->to(DType::f64);
                for (std::int64_t t = 17; t < 40; ++t) { EXPECT_EQ(wide.as<double>()[(40 + t) * 8], 0); }
            }
            if (causal) {
                const Tensor wide = r.out.to(DType::f64);
                for (std::int64_t n = 2 * 2 * 40 * 8; n < wide.elements(); ++n) { EXPECT_EQ(wide.as<double>()[n], 0); }
            }
        }
    }
}

TEST(LinearAttentionEdges, WhatIsNotFiniteNeverReachesTheFutureOfOthers) {
    Context context(1);
    const Sizes size{.B = 1, .H = 1, .G = 1, .T = 100, .S = 100, .D = 16, .E = 16, .N = 1, .F = 16};
    constexpr std::int64_t spoiled = 53;  // inside a register tile of the second chunk
    for (const LinearForm form : {LinearForm::chunked, LinearForm::recurrent, LinearForm::quadratic}) {
        for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
            const Results clean = run(context, Inputs(size).as(DType::f32), {.form = form, .chunk = 48}, false, false);
            for (int which = 0; which < 4; ++which) {
                Inputs in = Inputs(size).as(DType::f32);
                Tensor* tensors[] = {&in.q, &in.k, &in.v, &in.dout};
                tensors[which]->as<float>()[spoiled * 16 + 5] = bad;
                const Results r = run(context, in, {.form = form, .chunk = 48}, false, false);
                const std::string what =
                    "input " + std::to_string(which) + ", form " + std::to_string(static_cast<int>(form));
                const auto same = [&](const Tensor& a, const Tensor& b, std::int64_t begin, std::int64_t end) {
                    for (std::int64_t n = begin * 16; n < end * 16; ++n) {
                        if (!(std::abs(a.as<float>()[n] - b.as<float>()[n]) <= 1e-4F)) { return false; }
                    }
                    return true;
                };
                // Rows before a bad key or value, and all rows but a bad query's, are as they were.
                EXPECT_TRUE(same(r.out, clean.out, 0, spoiled)) << what;
                EXPECT_TRUE(same(r.dq, clean.dq, 0, spoiled)) << what;
                if (which == 0 || which == 3) {
                    EXPECT_TRUE(same(r.dq, clean.dq, spoiled + 1, 100)) << what;
                    // A key behind the query passes it nothing back.
                    EXPECT_TRUE(same(r.dk, clean.dk, spoiled + 1, 100)) << what;
                    EXPECT_TRUE(same(r.dv, clean.dv, spoiled + 1, 100)) << what;
                } else if (std::isnan(bad)) {
                    // What may be seen is seen.
                    EXPECT_FALSE(same(r.out, clean.out, spoiled, 100)) << what;
                    EXPECT_TRUE(std::isnan(r.out.as<float>()[99 * 16 + 5])) << what;
                }
            }
        }
    }
}

TEST(LinearAttentionEdges, NothingInGivesNothingOut) {
    Context context(1);
    for (const DType dtype : {DType::f32, DType::f64}) {
        for (const double epsilon : {1e-6, 0.0}) {
            // No keys at all: an empty past.
            const Sizes none{.B = 1, .H = 2, .G = 2, .T = 3, .S = 0, .D = 4, .E = 4, .N = 2, .F = 4};
            const Inputs in = Inputs(none).as(dtype);
            const Results r = run(context, in, {.causal = false, .epsilon = epsilon}, false, false);
            for (const Tensor* tensor : {&r.out, &r.s, &r.z, &r.dq}) {
                const Tensor wide = tensor->to(DType::f64);
                for (std::int64_t n = 0; n < wide.elements(); ++n) { EXPECT_EQ(wide.as<double>()[n], 0); }
            }
            // With a state to start from, it comes out as it went in.
            const Results carried = run(context, in, {.causal = false, .epsilon = epsilon}, false, true);
            EXPECT_EQ(distance(carried.s, in.s), 0);
            EXPECT_EQ(distance(carried.z, in.z), 0);
        }
        const Sizes no_tokens{.B = 2, .H = 2, .G = 1, .T = 0, .S = 0, .D = 4, .E = 4, .N = 1, .F = 4};
        const Inputs in = Inputs(no_tokens).as(dtype);
        const Results r = run(context, in, {}, true, true);
        EXPECT_EQ(distance(r.s, in.s), 0);
        EXPECT_EQ(distance(r.ds, in.ds), 0);
        EXPECT_EQ(run(context, Inputs(Sizes{.B = 0}).as(dtype), {}, true, true).out.elements(), 0);
    }
}

TEST(LinearAttentionEdges, KnownNumbers) {
    Context context(1);
    // elu(x) + 1 at -2, -1, 0, 1, 2, read off the state of one token with value 1.
    const double x[5] = {-2, -1, 0, 1, 2};
    const double one = 1;
    const double expected[5] = {0.1353352832, 0.3678794412, 1, 2, 3};
    double s[5];
    double out;
    const View k(x, {1, 1, 1, 5});
    linear_attend(context, k, k, View(&one, {1, 1, 1, 1}),
                  {.out = MutableView(&out, {1, 1, 1, 1}), .final = {MutableView(s, {1, 1, 5, 1}), {}}},
                  {.normalise = false});
    for (int n = 0; n < 5; ++n) { EXPECT_NEAR(s[n], expected[n], 1e-10); }

    // Weights that sum to 1: constant values come back, up to epsilon.
    const Sizes size{.B = 1, .H = 1, .G = 1, .T = 80, .S = 80, .D = 8, .E = 8, .N = 1, .F = 8};
    Inputs in = Inputs(size).as(DType::f32);
    std::fill_n(in.v.as<float>(), in.v.elements(), 3.0F);
    const Results r = run(context, in, {}, true, false);
    for (std::int64_t n = 0; n < r.out.elements(); ++n) { EXPECT_NEAR(r.out.as<float>()[n], 3, 1e-5); }

    // A decay of 0 forgets everything: each token sees itself.
    const float zero = 0;
    const Inputs plain = Inputs(size).as(DType::f32);
    const Results self = run(context, plain, {.decay = View(&zero, {1})}, false, true);
    EXPECT_LE(distance(self.out, plain.v), 1e-5);
}

TEST(LinearAttentionEdges, PastTokensMayChangePlaces) {
    Context context(1);
    const Sizes size{.B = 1, .H = 1, .G = 1, .T = 50, .S = 50, .D = 8, .E = 8, .N = 1, .F = 8};
    Inputs in(size);
    const Results before = run(context, in, {}, false, false);
    for (Tensor* x : {&in.k, &in.v}) {
        std::swap_ranges(x->as<double>() + 3 * 8, x->as<double>() + 4 * 8, x->as<double>() + 40 * 8);
    }
    const Results after = run(context, in, {}, false, false);
    const auto last = [](const Tensor& x) { return Tensor::copy_of(x.view().slice(2, 49, 50)); };
    EXPECT_LE(distance(last(after.out), last(before.out)), 1e-12);
    EXPECT_GT(distance(after.out, before.out), 1e-6);
}

TEST(LinearAttentionEdges, WrongCallsSayWhatIsWrong) {
    Context context(1);
    const Sizes size{.B = 2, .H = 4, .G = 2, .T = 5, .S = 5, .D = 3, .E = 2, .N = 2, .F = 3};
    const Inputs in = Inputs(size).as(DType::f32);
    Tensor out(DType::f32, in.dout.shape());
    const auto attempt = [&](const LinearAttentionOptions& options, const LinearState& initial = {},
                             const MutableLinearState& final = {}) {
        return message_of(
            [&] { linear_attend(context, in.q, in.k, in.v, {.out = out, .final = final}, options, initial); });
    };
    const float negative[2] = {0.5F, -0.25F};
    const float large[2] = {1.5F, 0.5F};
    EXPECT_EQ(attempt({.decay = View(negative, {2})}), "[linear_attend] decay[1]: expected 0 to 1, got -0.250000");
    EXPECT_EQ(attempt({.decay = View(large, {2})}), "[linear_attend] decay[0]: expected 0 to 1, got 1.500000");
    EXPECT_EQ(attempt({.decay = View(large, {1})}), "[linear_attend] decay: expected [2] or [4], got [1]");
    EXPECT_EQ(attempt({.causal = false, .decay = in.decay}),
              "[linear_attend] decay: expected none without causal, got a tensor");
    EXPECT_EQ(attempt({.epsilon = -1}), "[linear_attend] epsilon: expected 0 or a positive number, got -1.000000");
    EXPECT_EQ(attempt({.scale = testing::infinity}), "[linear_attend] scale: expected a finite number, got inf");
    EXPECT_EQ(attempt({.chunk = -3}), "[linear_attend] chunk: expected 1 or more, or 0 for the fastest, got -3");
    EXPECT_EQ(attempt({.feature = FeatureMap::function}),
              "[linear_attend] feature_function.map: expected a function, got none");
    EXPECT_EQ(attempt({}, {in.s, {}}), "[linear_attend] initial.z: expected both parts of the state, or none, got one");
    EXPECT_EQ(attempt({.normalise = false}, {in.s, in.z}),
              "[linear_attend] initial.z: expected none without normalise, got a tensor");
    EXPECT_EQ(attempt({}, {in.z, in.z}), "[linear_attend] initial.s: expected [2, 2, 3, 2], got [2, 2, 3]");
    Tensor small(DType::f32, {2, 2, 3, 1});
    EXPECT_EQ(attempt({}, {}, {small, {}}), "[linear_attend] final.s: expected [2, 2, 3, 2], got [2, 2, 3, 1]");
    const std::int64_t lengths[2] = {5, 6};
    EXPECT_EQ(attempt({.key_lengths = View(lengths, {2})}), "[linear_attend] key_lengths[1]: expected 0 to 5, got 6");
    EXPECT_EQ(message_of([&] { linear_attend(context, in.q, in.k, in.k, small); }),
              "[linear_attend] out: expected [2, 4, 5, 3], got [2, 2, 3, 1]");
    EXPECT_EQ(
        message_of([&] { linear_attend(context, in.q, in.k.view().slice(2, 0, 4), in.v.view().slice(2, 0, 4), out); }),
        "[linear_attend] k: expected length 5 as in q where causal, got 4");
    // Nothing was written by any of these.
    for (std::int64_t n = 0; n < out.elements(); ++n) { EXPECT_EQ(out.as<float>()[n], 0); }

    Tensor s = in.s.clone();
    EXPECT_EQ(message_of([&] {
                  linear_attend_step(context, in.q, in.k, in.v, out, {s, {}});
              }),
              "[linear_attend_step] state.z: expected a normaliser to move on, got none");
    Tensor z = in.z.clone();
    EXPECT_EQ(message_of([&] {
                  linear_attend_step(context, in.q, in.k, in.v, out, {s, z});
              }),
              "[linear_attend_step] out: expected 3 axes [batch, heads, size], got [2, 4, 5, 2]");
    Tensor dq(DType::f32, in.q.shape());
    Tensor dk(DType::f32, in.k.shape());
    EXPECT_EQ(message_of([&] {
                  linear_attend_backward(context, {.q = in.q, .k = in.k, .v = in.v, .dout = in.dout}, {dq, dk, {}, {}});
              }),
              "[linear_attend_backward] dv: expected a tensor of shape [2, 2, 5, 2], got none");
    EXPECT_EQ(message_of([&] {
                  linear_attend_backward(context, {.q = in.q, .k = in.k, .v = in.v, .dout = in.dout}, {dq, dk, dk, {}});
              }),
              "[linear_attend_backward] dv: expected [2, 2, 5, 2], got [2, 2, 5, 3]");
    EXPECT_EQ(message_of([&] {
                  LinearAttentionOptions options{.feature = FeatureMap::function};
                  options.feature_function.map = exponential_pair(3).map;
                  linear_attend_backward(context, {.q = in.q, .k = in.k, .v = in.v, .dout = in.dout}, {dq, dk, out, {}},
                                         options);
              }),
              "[linear_attend_backward] feature_function.backward: expected a function, got none");
    Tensor dv(DType::f32, in.v.shape());
    Tensor ddecay(DType::f32, {4});
    const auto learn = [&](const LinearAttentionOptions& options) {
        return message_of([&] {
            linear_attend_backward(context, {.q = in.q, .k = in.k, .v = in.v, .dout = in.dout},
                                   {.dq = dq, .dk = dk, .dv = dv, .ddecay = ddecay}, options);
        });
    };
    EXPECT_EQ(learn({}), "[linear_attend_backward] ddecay: expected none without decay, got a tensor");
    EXPECT_EQ(learn({.decay = in.decay}), "[linear_attend_backward] ddecay: expected [2], got [4]");
    // A state may be moved on in place, but not onto half of itself.
    Tensor longer(DType::f32, {3, 2, 3, 2});
    EXPECT_EQ(attempt({.normalise = false}, {longer.view().slice(0, 0, 2), {}}, {longer.view().slice(0, 1, 3), {}}),
              "[linear_attend] final.s: expected memory apart from initial.s, got an overlap");
}

}  // namespace
}  // namespace heed
