#include "unit/ops/infini_attention_testing.h"

namespace heed {
namespace {

using namespace testing_infini;
using testing_linear::distance;

struct Gradients {
    Tensor dq, dk, dv, dmemory_q, dmemory_k, dgates, dm, dz, dsinks, dslopes;

    explicit Gradients(const InfiniInputs& in) {
        const DType wide = in.gates.dtype();
        dq = Tensor(wide, in.q.shape());
        dk = Tensor(wide, in.k.shape());
        dv = Tensor(wide, in.v.shape());
        dmemory_q = Tensor(wide, in.q.shape());
        dmemory_k = Tensor(wide, in.k.shape());
        dgates = Tensor(wide, {in.H});
        dm = Tensor(wide, in.dm.shape());
        dz = Tensor(wide, in.dz.shape());
        dsinks = Tensor(wide, {in.H});
        dslopes = Tensor(wide, {in.H});
    }
    /// Those that the options ask for.
    InfiniGradients views(const InfiniOptions& o) {
        InfiniGradients g{.dq = dq, .dk = dk, .dv = dv, .dgates = dgates, .dm = dm, .dz = dz};
        if (o.memory_q) { g.dmemory_q = dmemory_q; }
        if (o.memory_k) { g.dmemory_k = dmemory_k; }
        if (o.local.sinks) { g.dsinks = dsinks; }
        if (o.local.alibi_slopes) { g.dalibi_slopes = dslopes; }
        return g;
    }
    std::vector<std::pair<std::string, const Tensor*>> all() const {
        return {{"dq", &dq},         {"dk", &dk}, {"dv", &dv}, {"dmemory_q", &dmemory_q}, {"dmemory_k", &dmemory_k},
                {"dgates", &dgates}, {"dm", &dm}, {"dz", &dz}, {"dsinks", &dsinks},       {"dslopes", &dslopes}};
    }
};

/// A memory of `segments` segments with these numbers in it.
InfiniMemory some_memory(const InfiniInputs& in, std::int64_t segments, Tensor m, Tensor z) {
    InfiniMemory memory;
    memory.m = std::move(m);
    memory.z = std::move(z);
    memory.segments = segments;
    EXPECT_EQ(memory.m.shape(), in.dm.shape());
    return memory;
}

double dot(const Tensor& a, const Tensor& b) {
    double sum = 0;
    for (std::int64_t n = 0; n < a.elements(); ++n) { sum += a.as<double>()[n] * b.as<double>()[n]; }
    return sum;
}

TEST(InfiniAttentionBackward, IsFiniteDifferences) {
    Context context(1);
    // Three segments, the last of them not complete; with and without a past.
    for (const std::int64_t past : {0, 2}) {
        InfiniInputs in = filled({.B = 1, .H = 2, .G = 1, .T = 8, .D = 2, .E = 2});
        Tensor m = random(in.dm.shape(), 50);
        Tensor z = random(in.dz.shape(), 51, 0.5, 1.5);
        Tensor sinks = random({in.H}, 52);
        Tensor slopes = random({in.H}, 53, 0, 1);
        if (past == 0) {
            m = Tensor(DType::f64, in.dm.shape());
            z = Tensor(DType::f64, in.dz.shape());
        }
        int which = 0;
        for (InfiniOptions o : option_list(in, 3)) {
            if (which++ % 2 == 1) {
                o.local.sinks = sinks;
                o.local.alibi_slopes = slopes;
                o.local.softcap = 2;
                o.local.scale = 0.8;
            }
            const auto loss = [&] {
                InfiniMemory memory = some_memory(in, past, m.clone(), z.clone());
                Tensor out = in.out_like(DType::f64);
                infini_attend(context, in.q, in.k, in.v, in.gates, out, memory, o);
                return dot(out, in.dout) + dot(memory.m, in.dm) + dot(memory.z, in.dz);
            };
            Gradients g(in);
            infini_attend_backward(
                context, {.q = in.q, .k = in.k, .v = in.v, .gates = in.gates, .dout = in.dout, .after = {in.dm, in.dz}},
                g.views(o), some_memory(in, past, m.clone(), z.clone()), o);
            std::vector<std::pair<Tensor*, const Tensor*>> pairs = {
                {&in.q, &g.dq}, {&in.k, &g.dk}, {&in.v, &g.dv}, {&in.gates, &g.dgates}};
            if (o.memory_q) { pairs.insert(pairs.end(), {{&in.memory_q, &g.dmemory_q}, {&in.memory_k, &g.dmemory_k}}); }
            // An empty memory is no place to vary: the guard stands there.
            if (past > 0) { pairs.insert(pairs.end(), {{&m, &g.dm}, {&z, &g.dz}}); }
            if (o.local.sinks) { pairs.insert(pairs.end(), {{&sinks, &g.dsinks}, {&slopes, &g.dslopes}}); }
            for (const auto& [input, gradient] : pairs) {
                for (std::int64_t n = 0; n < input->elements(); ++n) {
                    double& x = input->as<double>()[n];
                    const double kept = x;
                    x = kept + 1e-5;
                    const double above = loss();
                    x = kept - 1e-5;
                    const double below = loss();
                    x = kept;
                    const double expected = (above - below) / 2e-5;
                    const auto at = static_cast<std::ptrdiff_t>(n);
                    EXPECT_NEAR(gradient->as<double>()[at], expected, 1e-6 * std::max(1.0, std::abs(expected)))
                        << "option set " << which << ", past " << past << ", element " << n << " of "
                        << to_string(input->shape());
                }
            }
        }
    }
}

TEST(InfiniAttentionBackward, KernelsEqualTheReference) {
    Context context(1);
    for (const DType dtype : {DType::f32, DType::bf16}) {
        InfiniInputs narrow = filled({.B = 2, .H = 4, .G = 2, .T = 75, .D = 16, .E = 24});
        narrow.narrow(dtype);
        // The same numbers, so that only the sums differ.
        InfiniInputs wide = filled({.B = 2, .H = 4, .G = 2, .T = 75, .D = 16, .E = 24});
        wide.narrow(dtype);
        wide.narrow(DType::f64);
        const std::vector<InfiniOptions> options = option_list(narrow, 20);
        const std::vector<InfiniOptions> wide_options = option_list(wide, 20);
        for (std::size_t n = 0; n < options.size(); ++n) {
            Gradients got(narrow);
            infini_attend_backward(context,
                                   {.q = narrow.q,
                                    .k = narrow.k,
                                    .v = narrow.v,
                                    .gates = narrow.gates,
                                    .dout = narrow.dout,
                                    .after = {narrow.dm, narrow.dz}},
                                   got.views(options[n]), {}, options[n]);
            Gradients expected(wide);
            infini_attend_backward(context,
                                   {.q = wide.q,
                                    .k = wide.k,
                                    .v = wide.v,
                                    .gates = wide.gates,
                                    .dout = wide.dout,
                                    .after = {wide.dm, wide.dz}},
                                   expected.views(wide_options[n]), {}, wide_options[n]);
            const auto a = got.all();
            const auto b = expected.all();
            for (std::size_t part = 0; part < a.size(); ++part) {
                EXPECT_LE(distance(*a[part].second, *b[part].second), dtype == DType::f32 ? 2e-5 : 1e-2)
                    << a[part].first << ", option set " << n;
            }
        }
    }
}

/// Whole sequences in one call, and in calls of `segments` segments with the memory's gradient handed back or not.
TEST(InfiniAttentionBackward, CutEqualsCallsThatHandNothingBack) {
    Context context(1);
    InfiniInputs in = filled();
    constexpr std::int64_t segment = 4;
    for (const MemoryUpdate update : {MemoryUpdate::linear, MemoryUpdate::delta}) {
        for (const std::int64_t unroll : {0, 1, 2, 3}) {
            InfiniOptions o{.segment = segment, .update = update, .unroll = unroll};
            Gradients whole(in);
            infini_attend_backward(context, {.q = in.q, .k = in.k, .v = in.v, .gates = in.gates, .dout = in.dout},
                                   whole.views(o), {}, o);

            // Calls of two segments for unroll 0, whose gradient is handed back; otherwise one call a run.
            const std::int64_t step = segment * (unroll == 0 ? 2 : unroll);
            std::vector<InfiniMemory> before(1);
            InfiniMemory memory;
            Tensor out = in.out_like(DType::f64);
            const auto range = [&](const auto& x, std::int64_t begin) {
                return x.slice(2, begin, std::min(in.T, begin + step));
            };
            for (std::int64_t t = 0; t < in.T; t += step) {
                infini_attend(context, range(in.q.view(), t), range(in.k.view(), t), range(in.v.view(), t), in.gates,
                              range(out.view(), t), memory, o);
                before.push_back(memory.clone());
            }
            Gradients parts(in);
            Tensor dgates(DType::f64, {in.H});
            InfiniMemoryGradient after;
            Tensor dm;
            Tensor dz;
            for (std::int64_t t = (in.T - 1) / step * step; t >= 0; t -= step) {
                Tensor dm_before(DType::f64, in.dm.shape());
                Tensor dz_before(DType::f64, in.dz.shape());
                infini_attend_backward(context,
                                       {.q = range(in.q.view(), t),
                                        .k = range(in.k.view(), t),
                                        .v = range(in.v.view(), t),
                                        .gates = in.gates,
                                        .dout = range(in.dout.view(), t),
                                        .after = after},
                                       {.dq = range(parts.dq.view(), t),
                                        .dk = range(parts.dk.view(), t),
                                        .dv = range(parts.dv.view(), t),
                                        .dgates = parts.dgates,
                                        .dm = dm_before,
                                        .dz = dz_before},
                                       before[static_cast<std::size_t>(t / step)], o);
                for (std::int64_t h = 0; h < in.H; ++h) { dgates.as<double>()[h] += parts.dgates.as<double>()[h]; }
                if (unroll == 0) {
                    dm = std::move(dm_before);
                    dz = std::move(dz_before);
                    after = {dm, dz};
                }
            }
            EXPECT_LE(distance(parts.dq, whole.dq), 1e-12) << unroll;
            EXPECT_LE(distance(parts.dk, whole.dk), 1e-12) << unroll;
            EXPECT_LE(distance(parts.dv, whole.dv), 1e-12) << unroll;
            EXPECT_LE(distance(dgates, whole.dgates), 1e-12) << unroll;
        }
    }
}

std::string message_of(const std::function<void()>& call) {
    try {
        call();
    } catch (const Error& error) { return error.what(); }
    return "no error";
}

TEST(InfiniAttentionEdges, WrongCallsSayWhatIsWrong) {
    Context context(1);
    InfiniInputs in = filled();
    in.narrow(DType::f32);
    Tensor out = in.out_like(DType::f32);
    const auto attempt = [&](const InfiniOptions& o, InfiniMemory memory = {}) {
        return message_of([&] { infini_attend(context, in.q, in.k, in.v, in.gates, out, memory, o); });
    };
    EXPECT_EQ(attempt({.segment = 0}), "[infini_attend] segment: expected 1 or more tokens, got 0");
    EXPECT_EQ(attempt({.segment = -5}), "[infini_attend] segment: expected 1 or more tokens, got -5");
    EXPECT_EQ(attempt({.epsilon = 0}), "[infini_attend] epsilon: expected a positive number, got 0.000000");
    EXPECT_EQ(attempt({.unroll = -1}), "[infini_attend] unroll: expected a number of segments, or 0 for all, got -1");
    EXPECT_EQ(attempt({.memory_q = in.k}), "[infini_attend] memory_q: expected [2, 4, 23, 3], got [2, 2, 23, 3]");
    InfiniOptions biased;
    biased.local.bias = in.dm;
    EXPECT_EQ(attempt(biased), "[infini_attend] local.bias: expected none: it does not fit segments, got one");
    InfiniOptions dropped;
    dropped.local.dropout.p = 0.5;
    EXPECT_EQ(attempt(dropped), "[infini_attend] local.dropout: expected none: it does not fit segments, got one");
    InfiniMemory memory;
    const Tensor gates(DType::f32, {3});
    EXPECT_EQ(message_of([&] { infini_attend(context, in.q, in.k, in.v, gates, out, memory); }),
              "[infini_attend] gates: expected [4], got [3]");
    EXPECT_EQ(message_of([&] { infini_attend(context, in.q, in.k, in.v, {}, out, memory); }),
              "[infini_attend] gates: expected [4], got none");
    EXPECT_EQ(message_of([&] {
                  infini_attend(context, in.q, in.k.view().slice(2, 0, 9), in.v.view().slice(2, 0, 9), in.gates, out,
                                memory);
              }),
              "[infini_attend] k: expected length 23 as in q, got 9");
    EXPECT_FALSE(memory.m) << "a refused call leaves the memory alone";
    // A memory of other sizes, or with more tokens than a segment has.
    InfiniMemory other;
    other.m = Tensor(DType::f32, {1, 2, 3, 5});
    other.segments = 1;
    EXPECT_EQ(attempt({}, other.clone()), "[infini_attend] memory.m: expected [2, 2, 3, 5], got [1, 2, 3, 5]");
    other.pending = 7;
    EXPECT_EQ(attempt({.segment = 7}, other.clone()),
              "[infini_attend] memory.pending: expected 0 to 6, less than a segment, got 7");

    infini_attend(context, in.q, in.k, in.v, in.gates, out, memory, {.segment = 4});
    Gradients g(in);
    EXPECT_EQ(message_of([&] {
                  infini_attend_backward(context, {.q = in.q, .k = in.k, .v = in.v, .gates = in.gates, .dout = in.dout},
                                         g.views({}), memory, {.segment = 4});
              }),
              "[infini_attend_backward] before.pending: expected 0: calls that end with a segment, got 3");
    EXPECT_EQ(message_of([&] {
                  infini_attend_backward(context, {.q = in.q, .k = in.k, .v = in.v, .gates = in.gates, .dout = in.dout},
                                         {.dq = g.dq, .dk = g.dk, .dv = g.dv, .dsinks = g.dsinks}, {});
              }),
              "[infini_attend_backward] dsinks: expected none without local.sinks, got a tensor");
    EXPECT_EQ(message_of([&] {
                  infini_attend_backward(context, {.q = in.q, .k = in.k, .v = in.v, .gates = in.gates, .dout = in.dout},
                                         {.dq = g.dq, .dk = g.dk, .dv = g.dv}, {}, {.memory_q = in.memory_q});
              }),
              "[infini_attend_backward] dmemory_q: expected a tensor of shape [2, 4, 23, 3], got none");
}

TEST(InfiniAttentionEdges, NothingInGivesNothingOut) {
    Context context(1);
    for (const InfiniInputs& in : {filled({.T = 0}), filled({.B = 0, .T = 9})}) {
        InfiniMemory memory;
        EXPECT_EQ(in_calls(context, in, {.segment = 4}, {}, memory).elements(), 0);
        Gradients g(in);
        infini_attend_backward(
            context, {.q = in.q, .k = in.k, .v = in.v, .gates = in.gates, .dout = in.dout, .after = {in.dm, in.dz}},
            g.views({}), {}, {.segment = 4});
        EXPECT_EQ(distance(g.dm, in.dm), 0);
    }
}

TEST(InfiniAttentionEdges, WhatIsNotFiniteStaysInItsFuture) {
    Context context(1);
    InfiniInputs in = filled();
    in.narrow(DType::f32);
    const InfiniOptions o{.segment = 5};
    InfiniMemory memory;
    const Tensor clean = in_calls(context, in, o, {}, memory);
    // Token 12, in the third segment.
    in.v.as<float>()[12 * in.E] = std::numeric_limits<float>::quiet_NaN();
    InfiniMemory spoiled;
    const Tensor out = in_calls(context, in, o, {}, spoiled);
    for (std::int64_t t = 0; t < in.T; ++t) {
        const float x = out.as<float>()[t * in.E];
        if (t < 12) {
            EXPECT_EQ(x, clean.as<float>()[t * in.E]) << t;
        } else {
            EXPECT_TRUE(std::isnan(x)) << t;
        }
    }
}

}  // namespace
}  // namespace heed
