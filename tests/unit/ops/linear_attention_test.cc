#include "base/dispatch.h"
#include "support/sample.h"
#include "unit/ops/linear_attention_testing.h"

namespace heed {
namespace {

using namespace testing_linear;

double value(const Tensor& tensor, std::initializer_list<std::int64_t> at) {
    const Shape strides = tensor.shape().row_major();
    std::int64_t offset = 0;
    int axis = 0;
    for (const std::int64_t n : at) { offset += n * strides[axis++]; }
    return tensor.as<double>()[offset];
}

/// Every combination of what changes the numbers.
struct Variant {
    FeatureMap feature;
    bool causal, normalise, decayed, state;
    std::string name() const {
        return "feature " + std::to_string(static_cast<int>(feature)) + (causal ? ", causal" : "") +
               (normalise ? ", normalise" : "") + (decayed ? ", decay" : "") + (state ? ", state" : "");
    }
    LinearAttentionOptions options(std::int64_t D) const {
        LinearAttentionOptions o{.feature = feature, .causal = causal, .normalise = normalise, .scale = 0.7};
        if (feature == FeatureMap::function) { o.feature_function = exponential_pair(D); }
        return o;
    }
};
std::vector<Variant> variants() {
    std::vector<Variant> list;
    for (const FeatureMap feature :
         {FeatureMap::elu_plus_one, FeatureMap::relu, FeatureMap::identity, FeatureMap::function}) {
        for (int bits = 0; bits < 16; ++bits) {
            const Variant v{feature, (bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0, (bits & 8) != 0};
            // Sums of signed features may come to nothing; there the quotient has no meaning to compare.
            if ((v.decayed && !v.causal) || (feature == FeatureMap::identity && v.normalise)) { continue; }
            list.push_back(v);
        }
    }
    return list;
}
Sizes sized(const Variant& v, Sizes size) {
    size.F = v.feature == FeatureMap::function ? 2 * size.D : size.D;
    if (!v.causal) { size.S = size.T + 9; }
    return size;
}
std::string chunk_name(const Variant& v, std::int64_t chunk) { return v.name() + ", chunk " + std::to_string(chunk); }

TEST(LinearAttention, QuadraticFormIsTheFormula) {
    Context context(1);
    const Inputs in(Sizes{});
    const std::int64_t D = in.size.D;
    for (const bool normalise : {true, false}) {
        const Results r = run(context, in, {.normalise = normalise, .form = LinearForm::quadratic}, true, false);
        const auto phi = [](double x) { return x > 0 ? x + 1 : std::exp(x); };
        double most = 0;
        for (std::int64_t h = 0; h < in.size.H; ++h) {
            const std::int64_t g = h / 2;
            const double decay = in.decay.as<double>()[g];
            for (std::int64_t i = 0; i < in.size.T; ++i) {
                double denominator = 1e-6;
                double numerator = 0;
                for (std::int64_t j = 0; j <= i; ++j) {
                    double w = 0;
                    for (std::int64_t c = 0; c < D; ++c) {
                        w += phi(value(in.q, {1, h, i, c})) * phi(value(in.k, {1, g, j, c}));
                    }
                    w *= std::pow(decay, static_cast<double>(i - j));
                    denominator += w;
                    numerator += w * value(in.v, {1, g, j, 3});
                }
                const double expected = normalise ? numerator / denominator : numerator;
                most = std::max(most, std::abs(expected - value(r.out, {1, h, i, 3})));
            }
        }
        EXPECT_LE(most, 1e-12);
    }
}

TEST(LinearAttention, ThreeFormsAgreeInDouble) {
    Context context(1);
    for (const Variant& v : variants()) {
        const Inputs in(sized(v, Sizes{}));
        LinearAttentionOptions options = v.options(in.size.D);
        options.form = LinearForm::quadratic;
        const Results quadratic = run(context, in, options, v.decayed, v.state);
        options.form = LinearForm::recurrent;
        expect_near(run(context, in, options, v.decayed, v.state), quadratic, 1e-11, v.name() + ", recurrent");
        options.form = LinearForm::chunked;
        for (const std::int64_t chunk : {2, 3, 7, 18, 19, 1000}) {
            options.chunk = chunk;
            expect_near(run(context, in, options, v.decayed, v.state), quadratic, 1e-11, chunk_name(v, chunk));
        }
    }
}

TEST(LinearAttention, KernelsEqualTheReference) {
    Context context(1);
    Sizes size;
    size.T = size.S = 131;
    size.D = 13;
    size.E = 21;
    testing::Sample sample;
    for (const Variant& v : variants()) {
        if (!sample.takes()) { continue; }
        const Inputs in(sized(v, size));
        LinearAttentionOptions options = v.options(in.size.D);
        options.form = LinearForm::quadratic;
        const Results expected = run(context, in, options, v.decayed, v.state);
        const Inputs narrow = in.as(DType::f32);
        options.form = LinearForm::recurrent;
        expect_near(run(context, narrow, options, v.decayed, v.state), expected, 2e-5, v.name() + ", recurrent");
        options.form = LinearForm::chunked;
        for (const std::int64_t chunk : {0, 1, 5, 16, 48, 130, 5000}) {
            options.chunk = chunk;
            expect_near(run(context, narrow, options, v.decayed, v.state), expected, 2e-5, chunk_name(v, chunk));
        }
    }
}

TEST(LinearAttention, HeadsMayShareKeysOrStates) {
    Context context(1);
    struct Heads {
        std::int64_t H, G, N;
    };
    for (const Heads heads : {Heads{6, 6, 6}, Heads{6, 1, 1}, Heads{6, 2, 2}, Heads{6, 2, 6}, Heads{6, 1, 6}}) {
        Sizes size{.B = 2, .H = heads.H, .G = heads.G, .T = 70, .S = 70, .D = 16, .E = 8, .N = heads.N, .F = 16};
        const Inputs in(size);
        LinearAttentionOptions options{.chunk = 20};
        const Results expected = run(context, in, {.form = LinearForm::quadratic}, true, true);
        const std::string what = std::to_string(heads.G) + " key heads, " + std::to_string(heads.N) + " states";
        expect_near(run(context, in.as(DType::f32), options, true, true), expected, 2e-5, what);
        // The same as keys and values repeated for every query head.
        Sizes full = size;
        full.G = heads.H;
        full.N = heads.H;
        Inputs repeated(full);
        const auto repeat = [](const Tensor& from, Tensor& to, std::int64_t from_heads) {
            const std::int64_t block = to.elements() / to.shape()[0] / to.shape()[1];
            for (std::int64_t n = 0; n < to.shape()[0] * to.shape()[1]; ++n) {
                const std::int64_t b = n / to.shape()[1];
                const std::int64_t h = n % to.shape()[1];
                const std::int64_t source = b * from_heads + h * from_heads / to.shape()[1];
                std::copy_n(from.as<double>() + source * block, block, to.as<double>() + n * block);
            }
        };
        repeated.q = in.q.clone();
        repeat(in.k, repeated.k, heads.G);
        repeat(in.v, repeated.v, heads.G);
        repeat(in.s, repeated.s, heads.N);
        repeat(in.z, repeated.z, heads.N);
        for (std::int64_t h = 0; h < heads.H; ++h) {
            repeated.decay.as<double>()[h] = in.decay.as<double>()[h * heads.N / heads.H];
        }
        EXPECT_LE(distance(run(context, repeated, {.form = LinearForm::quadratic}, true, true).out, expected.out),
                  1e-12)
            << what;
    }
}

TEST(LinearAttention, HalfPrecisionInputs) {
    Context context(1);
    Sizes size{.T = 90, .S = 90, .D = 24, .E = 40, .F = 24};
    for (const DType dtype : {DType::bf16, DType::f16}) {
        const Inputs narrow = Inputs(size).as(dtype);
        const Results expected = run(context, narrow, {.form = LinearForm::quadratic}, true, true);
        // The inputs are the same numbers; only the sums differ.
        expect_near(run(context, narrow, {}, true, true), expected, 1e-5, std::string(name_of(dtype)));
        Tensor out(dtype, narrow.dout.shape());
        linear_attend(context, narrow.q, narrow.k, narrow.v, out, {.decay = narrow.decay});
        EXPECT_LE(distance(out, run(context, narrow, {}, true, false).out), dtype == DType::bf16 ? 4e-3 : 5e-4);
    }
}

TEST(LinearAttention, AnyStrides) {
    Context context(1);
    const Sizes size{.B = 2, .H = 4, .G = 2, .T = 37, .S = 37, .D = 8, .E = 16, .F = 8};
    const Inputs in = Inputs(size).as(DType::f32);
    const Results expected = run(context, in, {.chunk = 16}, false, false);
    // [B,T,H,D] memory; the innermost axis of v and out every third element.
    const auto scattered = [](const Tensor& from, std::int64_t inner) {
        const Shape& s = from.shape();
        Tensor memory(DType::f32, {s[0], s[2], s[1], s[3], inner});
        for (std::int64_t n = 0; n < memory.elements(); ++n) {
            memory.as<float>()[n] = std::numeric_limits<float>::quiet_NaN();
        }
        const MutableView view(DType::f32, memory.data(), s,
                               Shape{s[2] * s[1] * s[3] * inner, s[3] * inner, s[1] * s[3] * inner, inner});
        for (std::int64_t b = 0; b < s[0]; ++b) {
            for (std::int64_t h = 0; h < s[1]; ++h) {
                for (std::int64_t t = 0; t < s[2]; ++t) {
                    for (std::int64_t c = 0; c < s[3]; ++c) {
                        view.as<float>()[b * view.stride(0) + h * view.stride(1) + t * view.stride(2) + c * inner] =
                            from.as<float>()[((b * s[1] + h) * s[2] + t) * s[3] + c];
                    }
                }
            }
        }
        return std::pair(std::move(memory), view);
    };
    const auto q = scattered(in.q, 1);
    const auto k = scattered(in.k, 1);
    const auto v = scattered(in.v, 3);
    const auto dout = scattered(in.dout, 3);
    const auto out = scattered(expected.out, 3);
    const auto dq = scattered(expected.dq, 2);
    Tensor dk(DType::f32, in.k.shape());
    Tensor dv(DType::f32, in.v.shape());
    linear_attend(context, q.second, k.second, v.second, out.second, {.chunk = 16});
    EXPECT_TRUE(same_bits(Tensor::copy_of(out.second), expected.out));
    linear_attend_backward(context, {.q = q.second, .k = k.second, .v = v.second, .dout = dout.second},
                           {dq.second, dk, dv, {}}, {.chunk = 16});
    EXPECT_TRUE(same_bits(Tensor::copy_of(dq.second), expected.dq));
    EXPECT_TRUE(same_bits(dk, expected.dk));
    EXPECT_TRUE(same_bits(dv, expected.dv));
}

TEST(LinearAttention, GradientsAreFiniteDifferences) {
    Context context(1);
    for (const Variant& v : variants()) {
        if (!v.state) { continue; }
        Inputs in(sized(v, Sizes{.B = 1, .H = 2, .G = 1, .T = 6, .S = 6, .D = 3, .E = 2, .N = 1}));
        const LinearAttentionOptions options = v.options(in.size.D);
        const Results r = run(context, in, options, v.decayed, true);
        const auto loss = [&] {
            const Results at = run(context, in, options, v.decayed, true);
            double sum = 0;
            const auto add = [&sum](const Tensor& x, const Tensor& dx) {
                for (std::int64_t n = 0; n < x.elements(); ++n) { sum += x.as<double>()[n] * dx.as<double>()[n]; }
            };
            add(at.out, in.dout);
            add(at.s, in.ds);
            if (v.normalise) { add(at.z, in.dz); }
            return sum;
        };
        const std::vector<std::pair<Tensor*, const Tensor*>> pairs = {
            {&in.q, &r.dq}, {&in.k, &r.dk}, {&in.v, &r.dv}, {&in.s, &r.ds}, {&in.z, &r.dz}, {&in.decay, &r.ddecay}};
        for (std::size_t which = 0; which < pairs.size(); ++which) {
            if ((which == 4 && !v.normalise) || (which == 5 && !v.decayed)) { continue; }
            auto* x = pairs[which].first->as<double>();
            for (std::int64_t n = 0; n < pairs[which].first->elements(); ++n) {
                const double kept = x[n];
                constexpr double step = 1e-5;
                x[n] = kept + step;
                const double above = loss();
                x[n] = kept - step;
                const double below = loss();
                x[n] = kept;
                const double expected = (above - below) / (2 * step);
                EXPECT_NEAR(pairs[which].second->as<double>()[n], expected, 1e-6 * std::max(1.0, std::abs(expected)))
                    << v.name() << ", input " << which << " element " << n;
            }
        }
    }
}

TEST(LinearAttention, DecaysAtTheirEndsHaveGradients) {
    Context context(1);
    const Sizes size{.B = 2, .H = 2, .G = 2, .T = 70, .S = 70, .D = 16, .E = 16, .F = 16};
    for (const double end : {0.0, 1.0}) {
        Inputs in(size);
        in.decay.as<double>()[1] = end;
        const Results expected = run(context, in, {.form = LinearForm::quadratic}, true, true);
        EXPECT_NE(expected.ddecay.as<double>()[1], 0);
        expect_near(run(context, in, {.form = LinearForm::recurrent}, true, true), expected, 1e-12, "recurrent");
        for (const std::int64_t chunk : {1, 23, 64}) {
            expect_near(run(context, in.as(DType::f32), {.chunk = chunk}, true, true), expected, 2e-5,
                        "chunks of " + std::to_string(chunk));
        }
    }
}

TEST(LinearAttention, StateHandedOverEqualsTheWhole) {
    Context context(1);
    const Sizes size{.B = 1, .H = 2, .G = 2, .T = 150, .S = 150, .D = 16, .E = 16, .F = 16};
    for (const DType dtype : {DType::f32, DType::f64}) {
        const Inputs in = Inputs(size).as(dtype);
        const double tolerance = dtype == DType::f64 ? 1e-12 : 1e-5;
        const LinearAttentionOptions options{.decay = in.decay};
        const Results whole = run(context, in, {}, true, true);
        Tensor out(dtype, in.dout.shape());
        Tensor s = in.s.clone();
        Tensor z = in.z.clone();
        const MutableLinearState state{s, z};
        std::int64_t begin = 0;
        for (const std::int64_t length : {1, 40, 0, 3, 64, 42}) {
            const auto part = [&](const View& x) { return x.slice(2, begin, begin + length); };
            linear_attend(context, part(in.q), part(in.k), part(in.v),
                          {.out = out.view().slice(2, begin, begin + length), .final = state}, options, state);
            begin += length;
        }
        ASSERT_EQ(begin, size.T);
        EXPECT_LE(distance(out, whole.out), tolerance);
        EXPECT_LE(distance(s, whole.s), tolerance);
        EXPECT_LE(distance(z, whole.z), tolerance);

        // Backward in two calls: the gradient of the second's initial state is that of the first's final one.
        Tensor s1(dtype, in.s.shape());
        Tensor z1(dtype, in.z.shape());
        Results r{Tensor(dtype, in.dout.shape()),
                  {},
                  {},
                  Tensor(dtype, in.q.shape()),
                  Tensor(dtype, in.k.shape()),
                  Tensor(dtype, in.v.shape()),
                  Tensor(dtype, in.s.shape()),
                  Tensor(dtype, in.z.shape()),
                  Tensor(dtype, in.decay.shape())};
        Tensor ddecay(dtype, in.decay.shape());
        Tensor ds1(dtype, in.s.shape());
        Tensor dz1(dtype, in.z.shape());
        constexpr std::int64_t cut = 77;
        const auto cut_of = [&](const auto& x, bool second) {
            return second ? x.slice(2, cut, size.T) : x.slice(2, 0, cut);
        };
        linear_attend(context, cut_of(in.q.view(), false), cut_of(in.k.view(), false), cut_of(in.v.view(), false),
                      {.out = cut_of(r.out.view(), false), .final = {s1, z1}}, options, {in.s, in.z});
        for (const bool second : {true, false}) {
            const LinearState initial = second ? LinearState{s1, z1} : LinearState{in.s, in.z};
            const LinearState dfinal = second ? LinearState{in.ds, in.dz} : LinearState{ds1, dz1};
            const MutableLinearState dinitial = second ? MutableLinearState{ds1, dz1} : MutableLinearState{r.ds, r.dz};
            linear_attend_backward(context,
                                   {.q = cut_of(in.q.view(), second),
                                    .k = cut_of(in.k.view(), second),
                                    .v = cut_of(in.v.view(), second),
                                    .initial = initial,
                                    .dout = cut_of(in.dout.view(), second),
                                    .dfinal = dfinal},
                                   {.dq = cut_of(r.dq.view(), second),
                                    .dk = cut_of(r.dk.view(), second),
                                    .dv = cut_of(r.dv.view(), second),
                                    .dinitial = dinitial,
                                    .ddecay = second ? r.ddecay : ddecay},
                                   options);
        }
        // The decay serves both calls.
        for (std::int64_t n = 0; n < ddecay.elements(); ++n) {
            const double both = read_number(dtype, ddecay.data(), n) + read_number(dtype, r.ddecay.data(), n);
            write_number(dtype, ddecay.data(), n, both);
        }
        EXPECT_LE(distance(ddecay, whole.ddecay), tolerance);
        EXPECT_LE(distance(r.dq, whole.dq), tolerance);
        EXPECT_LE(distance(r.dk, whole.dk), tolerance);
        EXPECT_LE(distance(r.dv, whole.dv), tolerance);
        EXPECT_LE(distance(r.ds, whole.ds), tolerance);
        EXPECT_LE(distance(r.dz, whole.dz), tolerance);
    }
}

TEST(LinearAttention, StepsEqualTheWhole) {
    Context context(1);
    // A state that is moved on where it lies (E a whole number of vectors), and one that is not.
    for (const std::int64_t E : {32, 9}) {
        const Sizes size{.B = 2, .H = 4, .G = 2, .T = 21, .S = 21, .D = 16, .E = E, .F = 16};
        const Inputs in = Inputs(size).as(DType::f32);
        const Results whole = run(context, in, {.form = LinearForm::chunked, .chunk = 8}, true, true);
        Tensor s = in.s.clone();
        Tensor z = in.z.clone();
        Tensor out(DType::f32, in.dout.shape());
        for (std::int64_t t = 0; t < size.T; ++t) {
            const auto token = [t](const auto& x) {
                using AnyView = std::remove_cvref_t<decltype(x)>;
                const AnyView at = x.slice(2, t, t + 1);
                return AnyView(at.dtype(), at.data(), Shape{at.extent(0), at.extent(1), at.extent(3)},
                               Shape{at.stride(0), at.stride(1), at.stride(3)});
            };
            linear_attend_step(context, token(View(in.q)), token(View(in.k)), token(View(in.v)), token(out.view()),
                               {s, z}, {.decay = in.decay});
        }
        EXPECT_LE(distance(out, whole.out), 1e-5);
        EXPECT_LE(distance(s, whole.s), 1e-5);
        EXPECT_LE(distance(z, whole.z), 1e-5);
    }
}

}  // namespace
}  // namespace heed
