// Linear attention with a decay per token, and the delta rule.
#include "cpu/instruction_sets.h"
#include "unit/ops/gated_linear_attention_testing.h"

namespace heed {
namespace {

using namespace testing_linear;

const double* at(const Tensor& x, std::initializer_list<std::int64_t> place) {
    const View view = x;
    std::int64_t offset = 0;
    int axis = 0;
    for (const std::int64_t n : place) { offset += n * view.stride(axis++); }
    return view.as<double>() + offset;
}

/// The published recurrence, written down once more: S <- a S, e = beta (v - S^T k), S <- S + k e^T, out = scale S^T q.
struct PlainRecurrence {
    Tensor out, s;

    PlainRecurrence(const GatedInputs& g, double scale) : out(DType::f64, g.in.dout.shape()), s(g.in.s.to(DType::f64)) {
        const Sizes& z = g.in.size;
        for (std::int64_t b = 0; b < z.B; ++b) {
            for (std::int64_t n = 0; n < z.N; ++n) {
                for (std::int64_t t = 0; t < z.T; ++t) { token(g, b, n, t, scale); }
            }
        }
    }
    void token(const GatedInputs& g, std::int64_t b, std::int64_t n, std::int64_t t, double scale) {
        const Sizes& z = g.in.size;
        double* state = s.as<double>() + (b * z.N + n) * z.F * z.E;
        const double* k = at(g.in.k, {b, n / (z.N / z.G), t});
        for (std::int64_t f = 0; f < z.F; ++f) {
            const double a = g.gating.decays ? std::exp(*at(g.log_decay, {b, n, t, g.gating.each_row ? f : 0})) : 1;
            for (std::int64_t e = 0; e < z.E; ++e) { state[f * z.E + e] *= a; }
        }
        for (std::int64_t e = 0; e < z.E; ++e) {
            double write = *at(g.in.v, {b, n / (z.N / z.G), t, e});
            if (g.gating.rule == UpdateRule::delta) {
                for (std::int64_t f = 0; f < z.F; ++f) { write -= state[f * z.E + e] * k[f]; }
                write *= *at(g.beta, {b, n, t, g.gating.each_column ? e : 0});
            }
            for (std::int64_t f = 0; f < z.F; ++f) { state[f * z.E + e] += k[f] * write; }
            for (std::int64_t h = n * (z.H / z.N); h < (n + 1) * (z.H / z.N); ++h) {
                double sum = 0;
                for (std::int64_t f = 0; f < z.F; ++f) { sum += *at(g.in.q, {b, h, t, f}) * state[f * z.E + e]; }
                out.as<double>()[((b * z.H + h) * z.T + t) * z.E + e] = scale * sum;
            }
        }
    }
};

TEST(GatedLinearAttention, EveryFormIsTheRecurrence) {
    Context context(1);
    for (const Gating& gating : gatings()) {
        const GatedInputs g(Sizes{}, gating);
        const PlainRecurrence expected(g, 0.3);
        for (const LinearForm form : {LinearForm::automatic, LinearForm::recurrent, LinearForm::quadratic}) {
            const LinearAttentionOptions options{
                .feature = FeatureMap::identity, .normalise = false, .scale = 0.3, .form = form};
            Tensor out(DType::f64, g.in.dout.shape());
            Tensor s(DType::f64, g.in.s.shape());
            linear_attend(context, g.in.q, g.in.k, g.in.v, {.out = out, .final = {s, {}}}, g.options(options),
                          {g.in.s, {}});
            EXPECT_LE(distance(out, expected.out), 1e-14) << gating.name();
            EXPECT_LE(distance(s, expected.s), 1e-14) << gating.name();
        }
    }
}

TEST(GatedLinearAttention, QuadraticAndRecurrentFormsAgreeWithFeaturesAndNormaliser) {
    Context context(1);
    for (const Gating& gating : gatings()) {
        const GatedInputs g(Sizes{}, gating);
        for (const FeatureMap feature : {FeatureMap::elu_plus_one, FeatureMap::relu}) {
            const GatedResults a = run(context, g, {.feature = feature, .form = LinearForm::recurrent});
            expect_near(run(context, g, {.feature = feature, .form = LinearForm::quadratic}), a, 1e-12, gating.name());
        }
    }
}

TEST(GatedLinearAttention, EqualDecaysAreTheConstantDecay) {
    Context context(1);
    const Gating gating;
    GatedInputs g(Sizes{}, gating);
    for (std::int64_t n = 0; n < g.log_decay.elements(); ++n) {
        g.log_decay.as<double>()[n] = std::log(g.in.decay.as<double>()[n / g.in.size.T % g.in.size.N]);
    }
    const GatedResults gated = run(context, g, {});
    const Results constant = run(context, g.in, {}, true, true);
    EXPECT_LE(distance(gated.out, constant.out), 1e-13);
    EXPECT_LE(distance(gated.dq, constant.dq), 1e-13);
    EXPECT_LE(distance(gated.dk, constant.dk), 1e-13);
    EXPECT_LE(distance(gated.dv, constant.dv), 1e-13);
    EXPECT_LE(distance(gated.ds, constant.ds), 1e-13);
    EXPECT_LE(distance(gated.dz, constant.dz), 1e-13);
}

TEST(GatedLinearAttention, GradientsAreFiniteDifferences) {
    Context context(1);
    const Sizes size{.B = 2, .H = 4, .G = 2, .T = 6, .S = 6, .D = 3, .E = 4, .N = 2, .F = 3};
    for (const Gating& gating : gatings()) {
        for (const FeatureMap feature : {FeatureMap::identity, FeatureMap::elu_plus_one}) {
            GatedInputs g(size, gating);
            const LinearAttentionOptions options{
                .feature = feature, .normalise = feature == FeatureMap::elu_plus_one, .scale = 0.7};
            const GatedResults exact = run(context, g, options);
            const auto loss = [&] {
                const GatedResults r = run(context, g, options);
                double sum = 0;
                const auto add = [&](const Tensor& x, const Tensor& by) {
                    for (std::int64_t n = 0; n < x.elements(); ++n) { sum += x.as<double>()[n] * by.as<double>()[n]; }
                };
                add(r.out, g.in.dout);
                add(r.s, g.in.ds);
                add(r.z, g.in.dz);
                return sum;
            };
            const auto check = [&](Tensor& x, const Tensor& gradient, const char* name) {
                for (std::int64_t n = 0; n < x.elements(); n += x.elements() / 7 + 1) {
                    double& value = x.as<double>()[n];
                    const double before = value;
                    constexpr double step = 1e-5;
                    value = before + step;
                    const double up = loss();
                    value = before - step;
                    const double down = loss();
                    value = before;
                    EXPECT_NEAR(gradient.as<double>()[n], (up - down) / (2 * step), 2e-6)
                        << name << "[" << n << "], " << gating.name();
                }
            };
            check(g.in.q, exact.dq, "q");
            check(g.in.k, exact.dk, "k");
            check(g.in.v, exact.dv, "v");
            check(g.in.s, exact.ds, "initial s");
            if (gating.decays) { check(g.log_decay, exact.dlog_decay, "log_decay"); }
            if (gating.rule == UpdateRule::delta) { check(g.beta, exact.dbeta, "beta"); }
        }
    }
}

/// Kernels that a context can be made to use, the reference among them.
std::vector<std::string> kernels() {
    std::vector<std::string> names = {"reference"};
    for (const cpu::InstructionSet& set : cpu::instruction_sets()) {
        if (set.missing == nullptr) { names.push_back("cpu-" + std::string(set.name)); }
    }
    return names;
}

TEST(GatedLinearAttention, EveryKernelEqualsTheReference) {
    Context context(1);
    for (const Gating& gating : gatings()) {
        if (gating.each_column) { continue; }
        for (const double strongest : {2.0, 40.0}) {
            Gating strong = gating;
            strong.strongest = strongest;
            const Sizes size{.B = 1, .H = 4, .G = 2, .T = 149, .S = 149, .D = 18, .E = 37, .N = 2, .F = 18};
            const GatedInputs g(size, strong);
            const LinearAttentionOptions options{.feature = FeatureMap::identity, .normalise = false, .scale = 0.5};
            const GatedResults expected = run(context, g, options);
            const GatedInputs narrow = g.as(DType::f32);
            for (const std::string& kernel : kernels()) {
                Context forced(1);
                forced.set_kernel(kernel);
                for (const std::int64_t chunk : {0, 1, 17, 64}) {
                    LinearAttentionOptions own = options;
                    own.chunk = chunk;
                    expect_near(run(forced, narrow, own), expected, 1e-5,
                                kernel + ", " + gating.name() + ", chunk " + std::to_string(chunk));
                }
            }
        }
    }
}

TEST(GatedLinearAttention, SameBitsForAnyNumberOfThreads) {
    const Sizes size{.B = 2, .H = 6, .G = 3, .T = 300, .S = 300, .D = 32, .E = 32, .N = 3, .F = 32};
    for (const Gating& gating : gatings()) {
        const GatedInputs g = GatedInputs(size, gating).as(DType::f32);
        const LinearAttentionOptions options{.feature = FeatureMap::identity, .normalise = false};
        Context one(1);
        const GatedResults expected = run(one, g, options);
        Context several(5);
        const GatedResults got = run(several, g, options);
        const auto a = got.all();
        const auto b = expected.all();
        for (std::size_t n = 0; n < a.size(); ++n) {
            EXPECT_TRUE(same_bits(*a[n].second, *b[n].second)) << a[n].first << ", " << gating.name();
        }
    }
}

TEST(GatedLinearAttention, HalfPrecisionInputs) {
    Context context(1);
    const Sizes size{.B = 1, .H = 2, .G = 2, .T = 70, .S = 70, .D = 16, .E = 16, .N = 2, .F = 16};
    for (const DType dtype : {DType::bf16, DType::f16}) {
        for (const Gating& gating : gatings()) {
            const GatedInputs narrow = GatedInputs(size, gating).as(dtype);
            GatedInputs wide(size, gating);  // the rounded numbers
            wide.in = narrow.in.as(DType::f64);
            wide.log_decay = narrow.log_decay.to(DType::f64);
            wide.beta = narrow.beta.to(DType::f64);
            const LinearAttentionOptions options{.feature = FeatureMap::identity, .normalise = false};
            expect_near(run(context, narrow, options), run(context, wide, options), 1e-5, gating.name());
        }
    }
}

TEST(GatedLinearAttention, NothingReachesAnEarlierRow) {
    Context context(1);
    const std::int64_t bad = 37;
    for (const Gating& gating : gatings()) {
        const Sizes size{.B = 1, .H = 2, .G = 2, .T = 90, .S = 90, .D = 16, .E = 16, .N = 2, .F = 16};
        const LinearAttentionOptions options{.feature = FeatureMap::identity, .normalise = false};
        for (const double poison : {std::numeric_limits<double>::quiet_NaN(), 1e30}) {
            GatedInputs g = GatedInputs(size, gating).as(DType::f32);
            Tensor clean(DType::f32, g.in.dout.shape()), got(DType::f32, g.in.dout.shape());
            linear_attend(context, g.in.q, g.in.k, g.in.v, clean, g.options(options));
            for (Tensor* x : {&g.in.k, &g.in.v}) {
                const std::int64_t row = x->shape()[3];
                for (std::int64_t c = 0; c < row; ++c) { x->as<float>()[bad * row + c] = static_cast<float>(poison); }
            }
            linear_attend(context, g.in.q, g.in.k, g.in.v, got, g.options(options));
            const auto before = [&](const Tensor& x) { return Tensor::copy_of(View(x).slice(2, 0, bad)); };
            EXPECT_TRUE(same_bits(before(got), before(clean))) << gating.name();
        }
    }
}

TEST(GatedLinearAttention, DeltaRuleReplacesWhatAKeyStands) {
    Context context(1);
    // Three tokens with orthonormal keys, and the first key once more with another value.
    const std::vector<double> k = {1, 0, 0, 0, 1, 0, 0, 0, 1, 1, 0, 0};
    const std::vector<double> v = {1, 2, 3, 4, 5, 6, 7, 8};
    std::vector<double> out(8), s(6);
    LinearAttentionOptions options{.feature = FeatureMap::identity, .normalise = false};
    options.rule = UpdateRule::delta;
    linear_attend(context, View(k.data(), {1, 1, 4, 3}), View(k.data(), {1, 1, 4, 3}), View(v.data(), {1, 1, 4, 2}),
                  {.out = MutableView(out.data(), {1, 1, 4, 2}), .final = {MutableView(s.data(), {1, 1, 3, 2}), {}}},
                  options);
    EXPECT_EQ(out, v);
    EXPECT_EQ(s, (std::vector<double>{7, 8, 3, 4, 5, 6}));
}

TEST(GatedLinearAttention, ForgettingAllStartsAnew) {
    Context context(1);
    for (const bool each_row : {false, true}) {
        const Gating gating{.rule = UpdateRule::delta, .each_row = each_row};
        GatedInputs g(Sizes{}, gating);
        const std::int64_t cut = 7;
        const std::int64_t rows = g.log_decay.shape()[3];
        for (std::int64_t n = 0; n < g.log_decay.elements(); ++n) {
            if (n / rows % g.in.size.T == cut) {
                g.log_decay.as<double>()[n] = -std::numeric_limits<double>::infinity();
            }
        }
        for (const LinearForm form : {LinearForm::recurrent, LinearForm::quadratic}) {
            const LinearAttentionOptions options = g.options({.feature = FeatureMap::identity, .form = form});
            Tensor whole(DType::f64, g.in.dout.shape());
            linear_attend(context, g.in.q, g.in.k, g.in.v, whole, options, {g.in.s, {}});
            const auto rest = [&](const View& x) { return x.slice(2, cut, g.in.size.T); };
            LinearAttentionOptions later = options;
            later.log_decay = rest(options.log_decay);
            later.beta = rest(options.beta);
            const Tensor expected = Tensor::copy_of(rest(whole));
            Tensor got(DType::f64, expected.shape());
            linear_attend(context, rest(g.in.q), rest(g.in.k), rest(g.in.v), got, later);
            EXPECT_LE(distance(got, expected), 1e-14);
        }
    }
}

/// The first tokens at once and the others by steps, with the state moved on where it lies.
void expect_steps_equal_the_whole(const GatedInputs& wide, DType dtype, const LinearAttentionOptions& more,
                                  double tolerance) {
    for (const std::string& kernel : kernels()) {
        Context context(1);
        const GatedResults whole = run(context, wide, more);
        if (!(wide.gating.each_column || more.normalise) || kernel == "reference") { context.set_kernel(kernel); }
        const GatedInputs g = wide.as(dtype);
        const LinearAttentionOptions options = g.options(more);
        Tensor s = g.in.s.to(dtype);
        Tensor z = g.in.z.to(dtype);
        Tensor out(dtype, whole.out.shape());
        const MutableLinearState state{s, options.normalise ? z.view() : MutableView()};
        const auto part = [](const auto& x, std::int64_t begin, std::int64_t end) {
            return x ? x.slice(2, begin, end) : x;
        };
        const std::int64_t first = 5;
        LinearAttentionOptions some = options;
        some.log_decay = part(options.log_decay, 0, first);
        some.beta = part(options.beta, 0, first);
        linear_attend(context, part(g.in.q.view(), 0, first), part(g.in.k.view(), 0, first),
                      part(g.in.v.view(), 0, first), {.out = part(out.view(), 0, first), .final = state}, some, state);
        for (std::int64_t t = first; t < g.in.size.T; ++t) {
            // [B,N,1,...] without its axis of one
            const auto token = [&](const auto& x) {
                if (!x) { return x; }
                auto one = x.slice(2, t, t + 1);
                using AnyView = std::decay_t<decltype(one)>;
                if (one.rank() == 3) {
                    return AnyView(one.dtype(), one.data(), Shape{one.extent(0), one.extent(1)},
                                   Shape{one.stride(0), one.stride(1)});
                }
                return AnyView(one.dtype(), one.data(), Shape{one.extent(0), one.extent(1), one.extent(3)},
                               Shape{one.stride(0), one.stride(1), one.stride(3)});
            };
            some.log_decay = token(options.log_decay);
            some.beta = token(options.beta);
            linear_attend_step(context, token(View(g.in.q)), token(View(g.in.k)), token(View(g.in.v)),
                               token(out.view()), state, some);
        }
        EXPECT_LE(distance(out, whole.out), tolerance) << wide.gating.name() << ", " << kernel;
        EXPECT_LE(distance(s, whole.s), tolerance) << wide.gating.name() << ", " << kernel;
    }
}

TEST(GatedLinearAttention, StepsWithFeaturesAndNormaliserEqualTheWhole) {
    for (const Gating& gating : gatings()) {
        expect_steps_equal_the_whole(GatedInputs(Sizes{}, gating), DType::f32, {}, 1e-5);
    }
}

TEST(GatedLinearAttention, StepsAndPartsEqualTheWhole) {
    const Sizes size{.B = 2, .H = 4, .G = 2, .T = 19, .S = 19, .D = 16, .E = 32, .N = 2, .F = 16};
    for (const Gating& gating : gatings()) {
        expect_steps_equal_the_whole(GatedInputs(size, gating), DType::f32,
                                     {.feature = FeatureMap::identity, .normalise = false}, 1e-5);
    }
}

TEST(GatedLinearAttention, PackedSequencesEqualThoseAlone) {
    Context context(1);
    const std::vector<std::int64_t> ends = {0, 4, 4, 11, 17};  // two tokens belong to none
    for (const Gating& gating : gatings()) {
        const GatedInputs g(Sizes{.B = 1}, gating);
        const Sizes& size = g.in.size;
        LinearAttentionOptions packed = g.options();
        const std::int64_t sequences = 4;
        const Tensor s = random({sequences, size.N, size.F, size.E}, 30);
        const Tensor z = random({sequences, size.N, size.F}, 31, 0.5, 1.5);
        const bool normalise = packed.normalise;
        packed.cu_seqlens = View(ends.data(), {5});
        Tensor out = random(g.in.dout.shape(), 32);
        Tensor dq = random(g.in.q.shape(), 32), dk = random(g.in.k.shape(), 32), dv = random(g.in.v.shape(), 32);
        Tensor after(DType::f64, s.shape()), ds(DType::f64, s.shape());
        linear_attend(context, g.in.q, g.in.k, g.in.v, {.out = out, .final = {after, {}}}, packed,
                      {s, normalise ? View(z) : View()});
        LinearAttentionGradients gradients{.dq = dq, .dk = dk, .dv = dv, .dinitial = {ds, {}}};
        linear_attend_backward(
            context,
            {.q = g.in.q, .k = g.in.k, .v = g.in.v, .initial = {s, normalise ? View(z) : View()}, .dout = g.in.dout},
            gradients, packed);
        for (std::int64_t n = 0; n < sequences; ++n) {
            const std::int64_t begin = ends[static_cast<std::size_t>(n)];
            const std::int64_t end = ends[static_cast<std::size_t>(n) + 1];
            const auto part = [&](const View& x) { return x ? x.slice(2, begin, end) : x; };
            const auto own = [&](const Tensor& x) { return Tensor::copy_of(View(x).slice(0, n, n + 1)); };
            LinearAttentionOptions alone = g.options();
            alone.log_decay = part(alone.log_decay);
            alone.beta = part(alone.beta);
            const LinearState before{View(s).slice(0, n, n + 1), normalise ? View(z).slice(0, n, n + 1) : View()};
            const Tensor expected = Tensor::copy_of(part(out));
            Tensor got(DType::f64, expected.shape());
            const Tensor expected_s = own(after), expected_ds = own(ds);
            Tensor got_s(DType::f64, expected_s.shape()), got_ds(DType::f64, expected_s.shape());
            linear_attend(context, part(g.in.q), part(g.in.k), part(g.in.v), {.out = got, .final = {got_s, {}}}, alone,
                          before);
            EXPECT_TRUE(same_bits(got, expected)) << gating.name();
            EXPECT_TRUE(same_bits(got_s, expected_s)) << gating.name();
            Tensor gq = Tensor::copy_of(part(dq)), gk = Tensor::copy_of(part(dk)), gv = Tensor::copy_of(part(dv));
            const Tensor eq = Tensor::copy_of(gq), ek = Tensor::copy_of(gk), ev = Tensor::copy_of(gv);
            linear_attend_backward(
                context,
                {.q = part(g.in.q), .k = part(g.in.k), .v = part(g.in.v), .initial = before, .dout = part(g.in.dout)},
                {.dq = gq, .dk = gk, .dv = gv, .dinitial = {got_ds, {}}}, alone);
            EXPECT_TRUE(same_bits(gq, eq) && same_bits(gk, ek) && same_bits(gv, ev)) << gating.name();
            EXPECT_TRUE(same_bits(got_ds, expected_ds)) << gating.name();
        }
        for (const Tensor* x : {&out, &dq, &dk, &dv}) {
            const Tensor rest = Tensor::copy_of(View(*x).slice(2, 17, 19));
            EXPECT_TRUE(same_bits(rest, Tensor(DType::f64, rest.shape()))) << gating.name();
        }
    }
}

TEST(GatedLinearAttention, PaddedRowsAreZero) {
    Context context(1);
    const std::vector<std::int64_t> lengths = {11, 0};
    const GatedInputs g(Sizes{}, {.rule = UpdateRule::delta});
    LinearAttentionOptions options;
    options.key_lengths = View(lengths.data(), {2});
    const GatedResults r = run(context, g, options);
    for (const Tensor* x : {&r.out, &r.dq, &r.dk, &r.dv, &r.dlog_decay, &r.dbeta}) {
        const Tensor rest = Tensor::copy_of(View(*x).slice(2, 11, 19));
        EXPECT_TRUE(same_bits(rest, Tensor(DType::f64, rest.shape())));
        const Tensor empty = Tensor::copy_of(View(*x).slice(0, 1, 2));
        EXPECT_TRUE(same_bits(empty, Tensor(DType::f64, empty.shape())));
    }
    EXPECT_EQ(distance(Tensor::copy_of(View(r.s).slice(0, 1, 2)), Tensor::copy_of(View(g.in.s).slice(0, 1, 2))), 0);
}

TEST(GatedLinearAttention, WrongCallsAreRefused) {
    Context context(1);
    const GatedInputs g(Sizes{}, {.rule = UpdateRule::delta});
    Tensor out(DType::f64, g.in.dout.shape());
    const auto message = [&](const LinearAttentionOptions& options) -> std::string {
        try {
            linear_attend(context, g.in.q, g.in.k, g.in.v, out, options);
        } catch (const Error& error) { return error.what(); }
        return "no error";
    };
    const LinearAttentionOptions right = g.options();
    EXPECT_EQ(message(right), "no error");
    LinearAttentionOptions wrong = right;
    wrong.normalise = true;
    EXPECT_EQ(message(wrong), "[linear_attend] normalise: expected false with the delta rule, got true");
    wrong = right;
    wrong.rule = UpdateRule::sum;
    EXPECT_EQ(message(wrong), "[linear_attend] beta: expected none without the delta rule, got a tensor");
    wrong = right;
    wrong.causal = false;
    EXPECT_EQ(message(wrong), "[linear_attend] rule: expected sum without causal, got delta");
    wrong = right;
    wrong.decay = g.in.decay;
    EXPECT_EQ(message(wrong), "[linear_attend] log_decay: expected none beside decay, got a tensor");
    wrong = right;
    wrong.log_decay = right.log_decay.slice(2, 0, 3);
    EXPECT_EQ(message(wrong), "[linear_attend] log_decay: expected [2, 2, 19] or [2, 2, 19, 5], got [2, 2, 3]");
    wrong = right;
    wrong.beta = right.beta.slice(1, 0, 1);
    EXPECT_EQ(message(wrong), "[linear_attend] beta: expected as many heads as k or q, 2 or 4, got [2, 1, 19]");
    const std::vector<std::int64_t> ends = {0, 19};
    wrong = right;
    wrong.cu_seqlens = View(ends.data(), {2});
    EXPECT_EQ(message(wrong), "[linear_attend] q: expected batch 1 where sequences are packed (cu_seqlens), got 2");
}

}  // namespace
}  // namespace heed
