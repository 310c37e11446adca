#include <heed/matmul.h>
#include <heed/mla.h>

#include "unit/ops/op_testing.h"

namespace heed::testing {
namespace {

/// A call with n = 5, p = 4, r = 7, v = 6; latents and rotary keys side by side in the cache.
struct Problem {
    Tensor q, cache, up_key, up_value;
    static constexpr std::int64_t latent = 7;
    MlaWeights weights() const { return {up_key, up_value}; }
    View latents() const { return View(cache).slice(2, 0, latent); }
    View rotary() const { return View(cache).slice(2, latent, cache.shape()[2]); }

    explicit Problem(DType dtype, std::int64_t batch = 2, std::int64_t queries = 5, std::int64_t keys = 9,
                     std::int64_t p = 4)
        : q(random(dtype, {batch, 3, queries, 5 + p}, 1)),
          cache(random(dtype, {batch, keys, latent + p}, 2)),
          up_key(random(dtype, {3, 5, latent}, 3, 0.5)),
          up_value(random(dtype, {3, 6, latent}, 4, 0.5)) {}

    Shape out_shape() const { return {q.shape()[0], 3, q.shape()[2], 6}; }
    Shape lse_shape() const { return {q.shape()[0], 3, q.shape()[2]}; }
};

struct MlaResult {
    Tensor out, lse;
};
MlaResult expanded(Context& context, const Problem& p, const AttentionOptions& options = {}) {
    MlaResult r{Tensor(p.q.dtype(), p.out_shape()), Tensor(DType::f64, p.lse_shape())};
    mla_attend(context, p.q, p.latents(), p.rotary(), p.weights(), {.out = r.out, .lse = r.lse}, options);
    return r;
}
MlaResult absorbed(Context& context, const Problem& p, const AttentionOptions& options = {}) {
    MlaResult r{Tensor(p.q.dtype(), p.out_shape()), Tensor(DType::f64, p.lse_shape())};
    mla_attend_absorbed(context, p.q, p.cache, p.weights(), {.out = r.out, .lse = r.lse}, options);
    return r;
}

/// The definition: keys and values by hand, then attention.
MlaResult by_hand(Context& context, const Problem& p, AttentionOptions options = {}) {
    const std::int64_t batch = p.q.shape()[0], keys = p.cache.shape()[1], rotary = p.cache.shape()[2] - p.latent;
    Tensor k(DType::f64, {batch, 3, keys, 5 + rotary}), v(DType::f64, {batch, 3, keys, 6});
    for (std::int64_t b = 0; b < batch; ++b) {
        for (std::int64_t h = 0; h < 3; ++h) {
            for (std::int64_t s = 0; s < keys; ++s) {
                const std::int64_t row = (b * 3 + h) * keys + s;
                const auto c = [&](std::int64_t r) { return get(p.cache, (b * keys + s) * (p.latent + rotary) + r); };
                for (std::int64_t r = 0; r < p.latent; ++r) {
                    for (std::int64_t n = 0; n < 5; ++n) {
                        k.as<double>()[row * (5 + rotary) + n] += get(p.up_key, (h * 5 + n) * p.latent + r) * c(r);
                    }
                    for (std::int64_t e = 0; e < 6; ++e) {
                        v.as<double>()[row * 6 + e] += get(p.up_value, (h * 6 + e) * p.latent + r) * c(r);
                    }
                }
                for (std::int64_t n = 0; n < rotary; ++n) {
                    k.as<double>()[row * (5 + rotary) + 5 + n] = c(p.latent + n);
                }
            }
        }
    }
    MlaResult r{Tensor(DType::f64, p.out_shape()), Tensor(DType::f64, p.lse_shape())};
    const Tensor q = p.q.to(DType::f64);
    attend(context, q, k, v, {.out = r.out, .lse = r.lse}, options);
    return r;
}

struct Tolerance {
    DType dtype;
    double value;
};
constexpr Tolerance tolerances[] = {{DType::f64, 1e-13}, {DType::f32, 3e-6}, {DType::bf16, 0.04}, {DType::f16, 0.005}};

TEST(Mla, BothFormsAreTheDefinition) {
    Context context(2);
    for (const auto& [dtype, tolerance] : tolerances) {
        for (const std::int64_t queries : {1, 5}) {
            for (const std::int64_t rotary : {0, 4}) {
                const Problem p(dtype, 2, queries, 9, rotary);
                const MlaResult truth = by_hand(context, p);
                for (const MlaResult& r : {expanded(context, p), absorbed(context, p)}) {
                    expect_near(r.out, truth.out, tolerance);
                    expect_near(r.lse, truth.lse, tolerance);
                }
            }
        }
    }
}

TEST(Mla, EveryOptionPassesThroughBothForms) {
    Context context(1);
    for (const DType dtype : {DType::f64, DType::f32}) {
        const Problem p(dtype);
        const Tensor bias = random(DType::f32, {1, 3, 5, 9}, 10), slopes = random(DType::f32, {3}, 11),
                     sinks = random(DType::f64, {3}, 12);
        const std::int64_t lengths[2] = {9, 6};
        AttentionOptions options;
        options.scale = mla_scale(9, 1.3);
        options.causal = true;
        options.window.left = 5;
        options.bias = bias;
        options.alibi_slopes = slopes;
        options.sinks = sinks;
        options.softcap = 4;
        options.key_lengths = View(lengths, {2});
        options.dropout = {.p = 0.3, .seed = 7, .offset = 1, .keep = {}};
        options.pattern = patterns::per_head({patterns::window(3, 0), patterns::causal(), patterns::strided(2)});
        const MlaResult truth = by_hand(context, p, options);
        for (const MlaResult& r : {expanded(context, p, options), absorbed(context, p, options)}) {
            expect_near(r.out, truth.out, dtype == DType::f64 ? 1e-13 : 3e-6);
            expect_near(r.lse, truth.lse, dtype == DType::f64 ? 1e-13 : 3e-6);
        }
    }
}

TEST(Mla, ScaleOfDeepSeek) {
    // n + p = 192, YaRN factor 40: mscale_all_dim 1 and 0.707.
    EXPECT_NEAR(mla_scale(192, 0.1 * std::log(40.0) + 1), 0.1352338, 5e-8);
    EXPECT_NEAR(mla_scale(192, 0.0707 * std::log(40.0) + 1), 0.1147214, 5e-8);
    EXPECT_DOUBLE_EQ(mla_scale(64), 0.125);
}

struct ExpandedGradients {
    Tensor dq, dlatent, drotary, dup_key, dup_value, dbias, dsinks;
    explicit ExpandedGradients(const Problem& p, DType dtype, std::int64_t rotary = 4)
        : dq(dtype, p.q.shape()),
          dlatent(dtype, {p.cache.shape()[0], p.cache.shape()[1], p.latent}),
          drotary(dtype, {p.cache.shape()[0], p.cache.shape()[1], rotary}),
          dup_key(dtype, p.up_key.shape()),
          dup_value(dtype, p.up_value.shape()),
          dbias(DType::f64, {1, 3, 5, 9}),
          dsinks(DType::f64, {3}) {}
    MlaGradients views(bool options = false) {
        MlaGradients g{dq, dlatent, drotary, dup_key, dup_value, {}, {}, {}};
        if (options) {
            g.dbias = dbias;
            g.dsinks = dsinks;
        }
        return g;
    }
};

TEST(Mla, GradientsByFiniteDifferences) {
    Context context(1);
    Problem p(DType::f64);
    Tensor bias = random(DType::f64, {1, 3, 5, 9}, 10), sinks = random(DType::f64, {3}, 11);
    AttentionOptions options;
    options.causal = true;
    options.bias = bias;
    options.sinks = sinks;
    options.softcap = 5;
    options.dropout = {.p = 0.2, .seed = 3, .offset = 0, .keep = {}};
    const Tensor dout = random(DType::f64, p.out_shape(), 20), dlse = random(DType::f64, p.lse_shape(), 21);
    const MlaResult r = expanded(context, p, options);
    ExpandedGradients g(p, DType::f64);
    mla_attend_backward(context,
                        {.q = p.q,
                         .latent = p.latents(),
                         .rotary_key = p.rotary(),
                         .weights = p.weights(),
                         .out = r.out,
                         .lse = r.lse,
                         .dout = dout,
                         .dlse = dlse},
                        g.views(true), options);
    const auto loss = [&] {
        const MlaResult now = expanded(context, p, options);
        return dot(now.out, dout) + dot(now.lse, dlse);
    };
    expect_gradient(g.dq, p.q, loss, "dq");
    expect_gradient(g.dlatent, p.cache.view().slice(2, 0, p.latent), loss, "dlatent");
    expect_gradient(g.drotary, p.cache.view().slice(2, p.latent, p.latent + 4), loss, "drotary_key");
    expect_gradient(g.dup_key, p.up_key, loss, "dup_key");
    expect_gradient(g.dup_value, p.up_value, loss, "dup_value");
    expect_gradient(g.dbias, bias, loss, "dbias");
    expect_gradient(g.dsinks, sinks, loss, "dsinks");
}

TEST(Mla, GradientsInFloatFollowThoseInDouble) {
    Context context(2);
    for (const auto& [dtype, tolerance] : {Tolerance{DType::f32, 2e-5}, Tolerance{DType::bf16, 0.1}}) {
        const Problem p(dtype);
        Problem wide(DType::f64);
        for (auto [to, from] : {std::pair{&wide.q, &p.q},
                                {&wide.cache, &p.cache},
                                {&wide.up_key, &p.up_key},
                                {&wide.up_value, &p.up_value}}) {
            *to = from->to(DType::f64);
        }
        const Tensor dout = random(dtype, p.out_shape(), 20);
        const MlaResult r = expanded(context, p), truth = expanded(context, wide);
        ExpandedGradients got(p, dtype), expected(wide, DType::f64);
        mla_attend_backward(context,
                            {.q = p.q,
                             .latent = p.latents(),
                             .rotary_key = p.rotary(),
                             .weights = p.weights(),
                             .out = r.out,
                             .lse = r.lse,
                             .dout = dout},
                            got.views());
        mla_attend_backward(context,
                            {.q = wide.q,
                             .latent = wide.latents(),
                             .rotary_key = wide.rotary(),
                             .weights = wide.weights(),
                             .out = truth.out,
                             .lse = truth.lse,
                             .dout = dout.to(DType::f64)},
                            expected.views());
        expect_near(got.dq, expected.dq, tolerance);
        expect_near(got.dlatent, expected.dlatent, tolerance);
        expect_near(got.drotary, expected.drotary, tolerance);
        expect_near(got.dup_key, expected.dup_key, tolerance);
        expect_near(got.dup_value, expected.dup_value, tolerance);
    }
}

TEST(Mla, WhatIsHiddenNeverLeaks) {
    Context context(1);
    for (const DType dtype : {DType::f64, DType::f32}) {
        const std::int64_t lengths[2] = {9, 6};
        AttentionOptions options;
        options.key_lengths = View(lengths, {2});
        // Head 1 does not see key 8 of batch entry 0 either.
        options.pattern = patterns::per_head({Pattern(), patterns::padding({8}), Pattern()});
        const Problem clean(dtype);
        Problem loud(dtype);
        for (std::int64_t s = 6; s < 9; ++s) {
            for (std::int64_t e = 0; e < 11; ++e) {
                set(loud.cache, (9 + s) * 11 + e, e % 2 == 0 ? infinity : std::nan(""));
            }
        }
        const Tensor dout = random(dtype, clean.out_shape(), 20);
        const auto run = [&](const Problem& p, ExpandedGradients& g) {
            MlaResult r = expanded(context, p, options);
            mla_attend_backward(context,
                                {.q = p.q,
                                 .latent = p.latents(),
                                 .rotary_key = p.rotary(),
                                 .weights = p.weights(),
                                 .out = r.out,
                                 .lse = r.lse,
                                 .dout = dout},
                                g.views(), options);
            return r;
        };
        ExpandedGradients of_clean(clean, dtype), of_loud(loud, dtype);
        const MlaResult a = run(clean, of_clean), b = run(loud, of_loud);
        expect_same(b.out, a.out);
        expect_same(absorbed(context, loud, options).out, absorbed(context, clean, options).out);
        expect_same(of_loud.dq, of_clean.dq);
        expect_same(of_loud.dlatent, of_clean.dlatent);
        expect_same(of_loud.drotary, of_clean.drotary);
        expect_near(of_loud.dup_key, of_clean.dup_key, 1e-6);
        expect_near(of_loud.dup_value, of_clean.dup_value, 1e-6);

        set(loud.cache, 8 * 11, std::nan(""));  // seen by heads 0 and 2
        ExpandedGradients mixed(loud, dtype);
        run(loud, mixed);
        for (std::int64_t n = 0; n < mixed.dup_key.elements(); ++n) {
            ASSERT_EQ(std::isnan(get(mixed.dup_key, n)), n / 35 != 1) << n;
        }
    }
}

TEST(Mla, SameBitsForAnyThreadsAndBatchNeighbours) {
    Context one(1), three(3);
    const Problem p(DType::f32, 4, 1, 70);
    const MlaResult whole = absorbed(one, p);
    expect_same(absorbed(three, p).out, whole.out);
    for (std::int64_t b = 0; b < 4; ++b) {
        Tensor out(DType::f32, {1, 3, 1, 6});
        mla_attend_absorbed(one, View(p.q).slice(0, b, b + 1), View(p.cache).slice(0, b, b + 1), p.weights(), out);
        expect_same(out, View(whole.out).slice(0, b, b + 1));
    }
    const Problem training(DType::f32, 2, 40, 40);
    expect_same(expanded(three, training).out, expanded(one, training).out);
}

TEST(Mla, AnyLayout) {
    Context context(1);
    const Problem p(DType::f32);
    const Scattered q(p.q), cache(p.cache), up_key(p.up_key), up_value(p.up_value);
    Scattered out(DType::f32, p.out_shape());
    const View latent = View(cache.view).slice(2, 0, 7), rotary = View(cache.view).slice(2, 7, 11);
    mla_attend(context, q.view, latent, rotary, {up_key.view, up_value.view}, out.view);
    expect_near(out.view, expanded(context, p).out, 1e-6);
    mla_attend_absorbed(context, q.view, cache.view, {up_key.view, up_value.view}, out.view);
    expect_near(out.view, absorbed(context, p).out, 1e-6);
}

TEST(Mla, NoKeysNoQueries) {
    Context context(1);
    for (const Problem& p :
         {Problem(DType::f32, 2, 5, 0), Problem(DType::f32, 2, 0, 9), Problem(DType::f32, 0, 5, 9)}) {
        for (const MlaResult& r : {expanded(context, p), absorbed(context, p)}) {
            for (std::int64_t n = 0; n < r.out.elements(); ++n) { ASSERT_EQ(get(r.out, n), 0); }
        }
        if (p.cache.elements() > 0) { continue; }
        ExpandedGradients g(p, DType::f32);
        const MlaResult r = expanded(context, p);
        mla_attend_backward(context,
                            {.q = p.q,
                             .latent = p.latents(),
                             .rotary_key = p.rotary(),
                             .weights = p.weights(),
                             .out = r.out,
                             .lse = r.lse,
                             .dout = r.out},
                            g.views());
        for (std::int64_t n = 0; n < g.dup_key.elements(); ++n) { ASSERT_EQ(get(g.dup_key, n), 0); }
    }
}

TEST(Mla, Errors) {
    Context context(1);
    const Problem p(DType::f32);
    Tensor out(DType::f32, p.out_shape());
    const auto text = [&](const View& q, const View& latent, const View& rotary, const MlaWeights& w,
                          const AttentionOptions& options = {}) {
        return error_text([&] { mla_attend(context, q, latent, rotary, w, out, options); });
    };
    const MlaWeights w = p.weights();
    EXPECT_EQ(text(p.q, p.latents(), p.rotary(), {w.up_key, {}}),
              "[mla_attend] up_value: expected a tensor [H,v,r], got none");
    EXPECT_EQ(text(p.q, p.latents(), {}, w), "[mla_attend] rotary_key: expected a tensor [B,S,p], got none");
    EXPECT_EQ(text(p.q, p.cache, p.rotary(), w), "[mla_attend] latent: expected [2, 9, 7], got [2, 9, 11]");
    EXPECT_EQ(text(View(p.q).slice(3, 0, 4), p.latents(), p.rotary(), w),
              "[mla_attend] q: expected at least n = 5 numbers a head, the rows of up_key, got 4");
    EXPECT_EQ(text(p.q, p.latents(), p.rotary(), {w.up_key, View(p.up_value).slice(0, 0, 2)}),
              "[mla_attend] up_value: expected [3, 6, 7], got [2, 6, 7]");
    AttentionOptions window;
    window.window.left = -2;
    EXPECT_EQ(text(p.q, p.latents(), p.rotary(), w, window),
              "[mla_attend] window.left: expected -1 (unlimited) or more, got -2");
    EXPECT_EQ(text(p.q, p.cache.to(DType::bf16), p.rotary(), w), "[mla_attend] latent: expected f32, got bf16");
    EXPECT_EQ(error_text([&] { mla_attend_absorbed(context, p.q, p.latents(), w, out); }),
              "[mla_attend_absorbed] cache: expected [2, 9, 11], got [2, 9, 7]");
    Problem over(DType::f32, 1, 9, 9);
    const MutableView inside(over.cache.as<float>(), {1, 1, 9, 6});
    EXPECT_EQ(error_text([&] { mla_attend_absorbed(context, over.q, over.cache, over.weights(), inside); }),
              "[mla_attend_absorbed] out: expected [1, 3, 9, 6], got [1, 1, 9, 6]");
    ExpandedGradients g(p, DType::f32);
    MlaGradients views = g.views();
    views.dup_value = g.dup_key;
    const MlaResult r = expanded(context, p);
    const auto backward = [&] {
        mla_attend_backward(context,
                            {.q = p.q,
                             .latent = p.latents(),
                             .rotary_key = p.rotary(),
                             .weights = w,
                             .out = r.out,
                             .lse = r.lse,
                             .dout = r.out},
                            views);
    };
    EXPECT_EQ(error_text(backward), "[mla_attend_backward] dup_value: expected [3, 6, 7], got [3, 5, 7]");
    views = g.views();
    views.dq = {};
    EXPECT_EQ(error_text(backward), "[mla_attend_backward] dq: expected a tensor of shape [2, 3, 5, 9], got none");
    EXPECT_EQ(error_text([] { mla_scale(0); }), "[mla_scale] head_size: expected at least 1, got 0");
}

}  // namespace
}  // namespace heed::testing
