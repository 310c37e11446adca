#pragma once
#include "unit/ops/linear_attention_testing.h"

namespace heed::testing_linear {

/// What is gated, and how.
struct Gating {
    UpdateRule rule = UpdateRule::sum;
    bool decays = true;
    bool each_row = false;     ///< a decay for each row of the state
    bool each_column = false;  ///< a beta for each column
    bool per_query_head = false;
    double strongest = 2;  ///< the most negative logarithm
    std::string name() const {
        return std::string(rule == UpdateRule::delta ? "delta" : "sum") + (decays ? " decayed" : "") +
               (each_row ? " each row" : "") + (each_column ? " each column" : "") +
               (per_query_head ? " per query head" : "");
    }
};

inline std::vector<Gating> gatings() {
    const auto sum = UpdateRule::sum;
    const auto delta = UpdateRule::delta;
    return {{.rule = sum},
            {.rule = sum, .each_row = true},
            {.rule = sum, .each_row = true, .per_query_head = true},
            {.rule = delta, .decays = false},
            {.rule = delta, .per_query_head = true},
            {.rule = delta, .each_row = true},
            {.rule = delta, .each_row = true, .each_column = true}};
}

/// A call with gates, in f64; keys have length 1 or less, as the delta rule wants them.
struct GatedInputs {
    Gating gating;
    Inputs in;
    Tensor log_decay, beta;

    static Sizes with_states(Sizes size, const Gating& gating) {
        size.N = gating.per_query_head ? size.H : size.G;
        return size;
    }
    GatedInputs(const Sizes& sizes, const Gating& how, unsigned seed = 1)
        : gating(how), in(with_states(sizes, how), seed) {
        const Sizes& size = in.size;
        const std::int64_t rows = how.each_row ? size.F : 1;
        const std::int64_t columns = how.each_column ? size.E : 1;
        log_decay = random({size.B, size.N, size.T, rows}, seed + 9, -how.strongest, 0);
        beta = random({size.B, size.N, size.T, columns}, seed + 10, 0.1, 1);
        const double shrink = 1 / std::sqrt(static_cast<double>(size.D));
        for (std::int64_t n = 0; n < in.k.elements(); ++n) { in.k.as<double>()[n] *= shrink; }
    }
    GatedInputs as(DType dtype) const {
        GatedInputs narrow(in.size, gating);
        narrow.in = in.as(dtype);
        narrow.log_decay = log_decay.to(dtype == DType::f64 ? dtype : DType::f32);
        narrow.beta = beta.to(dtype);
        return narrow;
    }
    static View gate(const Tensor& x, bool whole) {
        const View view = x;
        if (whole) { return view; }
        return View(view.dtype(), view.data(), Shape{view.extent(0), view.extent(1), view.extent(2)},
                    Shape{view.stride(0), view.stride(1), view.stride(2)});
    }
    LinearAttentionOptions options(LinearAttentionOptions o = {}) const {
        o.rule = gating.rule;
        if (gating.rule == UpdateRule::delta) {
            o.normalise = false;
            o.beta = gate(beta, gating.each_column);
        }
        if (gating.decays) { o.log_decay = gate(log_decay, gating.each_row); }
        return o;
    }
};

struct GatedResults {
    Tensor out, s, z, dq, dk, dv, ds, dz, dlog_decay, dbeta;
    std::vector<std::pair<std::string, const Tensor*>> all() const {
        return {{"out", &out},    {"final s", &s}, {"final z", &z},
                {"dq", &dq},      {"dk", &dk},     {"dv", &dv},
                {"ds", &ds},      {"dz", &dz},     {"dlog_decay", &dlog_decay},
                {"dbeta", &dbeta}};
    }
};

/// Forward and backward from an initial state, with a gradient for the final one.
inline GatedResults run(Context& context, const GatedInputs& g, const LinearAttentionOptions& more) {
    const LinearAttentionOptions options = g.options(more);
    const Inputs& in = g.in;
    const DType wide = in.q.dtype() == DType::f64 ? DType::f64 : DType::f32;
    const auto zeros = [&](const Shape& shape) { return Tensor(wide, shape); };
    GatedResults r{zeros(in.dout.shape()),     zeros(in.s.shape()),  zeros(in.z.shape()), zeros(in.q.shape()),
                   zeros(in.k.shape()),        zeros(in.v.shape()),  zeros(in.s.shape()), zeros(in.z.shape()),
                   zeros(g.log_decay.shape()), zeros(g.beta.shape())};
    LinearState initial{in.s, {}};
    LinearState dfinal{in.ds, {}};
    MutableLinearState final{r.s, {}};
    LinearAttentionGradients gradients{.dq = r.dq, .dk = r.dk, .dv = r.dv};
    gradients.dinitial.s = r.ds;
    const auto gate = [](Tensor& x, bool whole) {
        const View view = GatedInputs::gate(x, whole);
        return MutableView(view.dtype(), x.data(), view.shape(), view.strides());
    };
    if (options.log_decay) { gradients.dlog_decay = gate(r.dlog_decay, g.gating.each_row); }
    if (options.beta) { gradients.dbeta = gate(r.dbeta, g.gating.each_column); }
    if (options.normalise) {
        initial.z = in.z;
        dfinal.z = in.dz;
        final.z = r.z;
        gradients.dinitial.z = r.dz;
    }
    linear_attend(context, in.q, in.k, in.v, {.out = r.out, .final = final}, options, initial);
    linear_attend_backward(context,
                           {.q = in.q, .k = in.k, .v = in.v, .initial = initial, .dout = in.dout, .dfinal = dfinal},
                           gradients, options);
    return r;
}

inline void expect_near(const GatedResults& got, const GatedResults& expected, double tolerance,
                        const std::string& what) {
    const auto a = got.all();
    const auto b = expected.all();
    for (std::size_t n = 0; n < a.size(); ++n) {
        EXPECT_LE(distance(*a[n].second, *b[n].second), tolerance) << a[n].first << ", " << what;
    }
}

}  // namespace heed::testing_linear
