/// The arithmetic that the GPU's kernels for linear attention run, here by threads of the host: the numbers of the
/// reference, and (under the thread sanitizer) no step that does not wait for the one before.

#include <gtest/gtest.h>

#include <heed/tensor.h>

#include "base/place.h"
#include "cuda/linear_attention_steps.h"
#include "reference/linear_attention.h"
#include "support/random.h"

#include <barrier>
#include <cmath>
#include <string>
#include <thread>
#include <vector>

namespace heed::cuda {
namespace {

/// Threads of the host as a block whose warps have one lane.
struct HostTeam {
    int number, count;
    std::barrier<>* gate;

    std::int64_t thread() const { return number; }
    std::int64_t threads() const { return count; }
    std::int64_t lane() const { return 0; }
    std::int64_t lanes() const { return 1; }
    std::int64_t warp() const { return number; }
    std::int64_t warps() const { return count; }
    void meet() const { gate->arrive_and_wait(); }
    template <class A>
    A sum_of_lanes(A x) const {
        return x;
    }
    template <class A>
    static A load(DType dtype, const void* data, std::int64_t at) {
        return static_cast<A>(read_number(dtype, data, at));
    }
    template <class A>
    static void store(DType dtype, void* data, std::int64_t at, A value) {
        write_number(dtype, data, at, value);
    }
    static std::int64_t integer(DType dtype, const void* data, std::int64_t at) {
        return read_integer(dtype, data, at);
    }
};

template <class Work>
void by_team(const Work& work) {
    constexpr int count = 2;
    std::barrier<> gate(count);
    std::vector<std::jthread> threads;
    for (int n = 0; n < count; ++n) {
        threads.emplace_back([&, n] { work(HostTeam{n, count, &gate}); });
    }
}

struct Kind {
    const char* name;
    bool causal = true, normalise = true, delta = false, lengths = false;
    std::int64_t states = 0;  ///< of a decay; 0: none
    int gates = 0;            ///< 0: none, 1: a number each, 2: a number for each row or column
    FeatureMap feature = FeatureMap::elu_plus_one;
    double epsilon = 1e-6, least_denominator = 0;
};

Tensor drawn(testing::Random& random, const Shape& shape, double size = 1) {
    Tensor x(DType::f64, shape);
    for (std::int64_t n = 0; n < x.elements(); ++n) { x.as<double>()[n] = size * random.normal(); }
    return x;
}

/// A call with all of its tensors, in double.
struct LinearCase {
    static constexpr std::int64_t batch = 2, heads = 4, kv_heads = 2, tokens = 11, size = 3, values = 5;
    Kind kind;
    std::int64_t states;
    Tensor q, k, v, s, z, dout, ds, dz, decay, log_decay, beta, lengths;

    explicit LinearCase(const Kind& of) : kind(of), states(of.states > 0 ? of.states : kv_heads) {
        testing::Random random(3);
        q = drawn(random, {batch, heads, tokens, size});
        k = drawn(random, {batch, kv_heads, tokens, size});
        v = drawn(random, {batch, kv_heads, tokens, values});
        dout = drawn(random, {batch, heads, tokens, values});
        const double weight = kind.delta ? 0.3 : 1;
        s = drawn(random, {batch, states, size, values}, weight);
        z = drawn(random, {batch, states, size});
        ds = drawn(random, {batch, states, size, values});
        dz = drawn(random, {batch, states, size});
        for (Tensor* positive : {&z}) {
            for (std::int64_t n = 0; n < positive->elements(); ++n) {
                positive->as<double>()[n] = std::fabs(positive->as<double>()[n]);
            }
        }
        decay = Tensor(DType::f64, {states});
        for (std::int64_t n = 0; n < states; ++n) { decay.as<double>()[n] = 1 - 0.1 * static_cast<double>(n + 1); }
        const bool rows = kind.gates == 2;
        log_decay = drawn(random, rows ? Shape{batch, states, tokens, size} : Shape{batch, states, tokens}, 0.3);
        beta = drawn(random, rows ? Shape{batch, states, tokens, values} : Shape{batch, states, tokens}, 0.5);
        lengths = Tensor(DType::i64, {batch});
        lengths.as<std::int64_t>()[0] = 7;
    }

    LinearAttentionProblem problem() const {
        LinearAttentionProblem p;
        p.batch = batch;
        p.heads = heads;
        p.kv_heads = kv_heads;
        p.states = states;
        p.queries = p.keys = tokens;
        p.head_size = p.feature_size = size;
        p.value_size = values;
        p.least_denominator = kind.least_denominator;
        LinearAttentionOptions& o = p.options;
        o.feature = kind.feature;
        o.causal = kind.causal;
        o.normalise = kind.normalise;
        o.scale = 0.7;
        o.epsilon = kind.epsilon;
        if (kind.states > 0 && kind.gates == 0) { o.decay = decay.view(); }
        if (kind.gates > 0) { o.log_decay = log_decay.view(); }
        if (kind.delta) { o.rule = UpdateRule::delta; }
        if (kind.delta && kind.gates > 0) { o.beta = beta.view(); }
        if (kind.lengths) { o.key_lengths = lengths.view(); }
        p.q = q.view();
        p.k = k.view();
        p.v = v.view();
        p.initial.s = s.view();
        if (kind.normalise) { p.initial.z = z.view(); }
        return p;
    }
};

/// What a call writes; poisoned, so that nothing is left out.
struct LinearResults {
    std::vector<Tensor> tensors;
    MutableView take(const Shape& shape) {
        tensors.emplace_back(DType::f64, shape);
        for (std::int64_t n = 0; n < tensors.back().elements(); ++n) { tensors.back().as<double>()[n] = std::nan(""); }
        return tensors.back().view();
    }
};

LinearResults forward_results(const LinearCase& c, LinearAttentionProblem& p) {
    LinearResults results;
    p.out = results.take({c.batch, c.heads, c.tokens, c.values});
    p.final.s = results.take(c.s.shape());
    if (c.kind.normalise) { p.final.z = results.take(c.z.shape()); }
    return results;
}

LinearResults backward_results(const LinearCase& c, LinearAttentionProblem& p) {
    LinearResults results;
    LinearAttentionGradients& g = p.gradients;
    p.dout = c.dout.view();
    p.dfinal.s = c.ds.view();
    if (c.kind.normalise) { p.dfinal.z = c.dz.view(); }
    g.dq = results.take(c.q.shape());
    g.dk = results.take(c.k.shape());
    g.dv = results.take(c.v.shape());
    g.dinitial.s = results.take(c.s.shape());
    if (c.kind.normalise) { g.dinitial.z = results.take(c.z.shape()); }
    if (p.options.decay) { g.ddecay = results.take(c.decay.shape()); }
    if (p.options.log_decay) { g.dlog_decay = results.take(c.log_decay.shape()); }
    if (p.options.beta) { g.dbeta = results.take(c.beta.shape()); }
    return results;
}

LinearAttentionCall host_call(const LinearAttentionProblem& p) {
    LinearAttentionCall call = linear_call_of(p);
    call.decay = linear_call::tensor(p.options.decay);
    call.key_lengths = linear_call::tensor(p.options.key_lengths);
    return call;
}

/// Memory that holds nothing of use.
std::vector<double> poisoned(std::int64_t count) {
    return std::vector<double>(static_cast<std::size_t>(count), std::nan(""));
}

/// As linear_attention_any.cu launches them.
void forward_by_team(const LinearAttentionProblem& p) {
    const LinearAttentionCall c = host_call(p);
    const std::int64_t size = c.state_size();
    std::vector<double> row_memory = poisoned(LinearRows<double>::count(c.head_size, c.columns()));
    std::vector<double> states = poisoned(c.batch * c.states * size);
    const LinearRows<double> rows(row_memory.data(), c.head_size, c.columns());
    by_team([&](const HostTeam& team) {
        for (std::int64_t n = 0; n < c.batch * c.states; ++n) {
            double* const state = states.data() + n * size;
            if (c.causal) {
                linear_recurrence(c, team, n / c.states, n % c.states, state, rows);
            } else {
                share(team, size, [&](std::int64_t e) {
                    state[e] = whole_state_number<double, HostTeam>(c, state_place(c, n / c.states, n % c.states), e);
                });
            }
            team.meet();
        }
        for (std::int64_t n = 0; !c.causal && n < c.batch * c.heads * c.queries; ++n) {
            const std::int64_t h = n / c.queries % c.heads, b = n / c.queries / c.heads;
            answer(c, team, b, h, n % c.queries, states.data() + (b * c.states + h / c.readers()) * size, rows);
        }
    });
}

void backward_by_team(const LinearAttentionProblem& p) {
    const LinearAttentionCall c = host_call(p);
    const std::int64_t size = c.state_size(), columns = c.columns();
    std::vector<double> row_memory = poisoned(LinearRows<double>::count(c.head_size, columns));
    const LinearRows<double> rows(row_memory.data(), c.head_size, columns);
    std::vector<double> ddecay = poisoned(c.batch * c.states), memory = poisoned(LinearBackwardMemory(c).total());
    std::vector<double> states = poisoned(c.batch * c.states * size), dstates = states;
    std::vector<double> grads = poisoned(c.batch * c.heads * c.queries * columns);
    by_team([&](const HostTeam& team) {
        if (c.causal) {
            for (std::int64_t n = 0; n < c.batch * c.states; ++n) {
                double* const share_of = c.ddecay.data == nullptr ? nullptr : ddecay.data() + n;
                linear_recurrence_backward(c, team, n / c.states, n % c.states, memory.data(), share_of, rows);
            }
            return;
        }
        const auto elements = [&](std::vector<double>& to, const auto& number) {
            share(team, c.batch * c.states * size, [&](std::int64_t n) {
                const std::int64_t state = n / size;
                to[static_cast<std::size_t>(n)] = number(state_place(c, state / c.states, state % c.states), n % size);
            });
            team.meet();
        };
        elements(states,
                 [&](const StatePlace& at, std::int64_t e) { return whole_state_number<double, HostTeam>(c, at, e); });
        for (std::int64_t n = 0; n < c.batch * c.heads * c.queries; ++n) {
            const std::int64_t h = n / c.queries % c.heads, b = n / c.queries / c.heads;
            whole_query_backward(c, team, b, h, n % c.queries, states.data() + (b * c.states + h / c.readers()) * size,
                                 grads.data() + n * columns, rows);
            team.meet();
        }
        elements(dstates, [&](const StatePlace& at, std::int64_t e) {
            return whole_dstate_number<double, HostTeam>(c, at, e, grads.data());
        });
        for (std::int64_t n = 0; n < c.batch * c.kv_heads * c.keys; ++n) {
            whole_key_backward(c, team, n / c.keys / c.kv_heads, n / c.keys % c.kv_heads, n % c.keys, dstates.data(),
                               rows);
            team.meet();
        }
    });
    for (std::int64_t n = 0; c.ddecay.data != nullptr && n < c.states; ++n) {
        double sum = 0;
        for (std::int64_t b = 0; b < c.batch; ++b) { sum += ddecay[static_cast<std::size_t>(b * c.states + n)]; }
        write_number(c.ddecay.dtype, c.ddecay.data, n, sum);
    }
}

const Kind kinds[] = {
    {.name = "plain"},
    {.name = "lengths", .lengths = true},
    {.name = "no normaliser", .normalise = false, .feature = FeatureMap::identity},
    {.name = "decay of query heads", .lengths = true, .states = 4},
    {.name = "decay", .states = 2, .feature = FeatureMap::relu},
    {.name = "gated", .lengths = true, .gates = 1},
    {.name = "gated rows", .gates = 2},
    {.name = "delta", .normalise = false, .delta = true, .feature = FeatureMap::identity},
    {.name = "gated delta",
     .normalise = false,
     .delta = true,
     .lengths = true,
     .gates = 1,
     .feature = FeatureMap::identity},
    {.name = "gated delta, columns",
     .normalise = false,
     .delta = true,
     .states = 4,
     .gates = 2,
     .feature = FeatureMap::identity},
    {.name = "not causal", .causal = false},
    {.name = "not causal, lengths", .causal = false, .lengths = true, .feature = FeatureMap::relu},
    {.name = "not causal, no normaliser", .causal = false, .normalise = false},
    {.name = "not causal, least denominator", .causal = false, .epsilon = 0, .least_denominator = 8},
};

void expect_equal(const LinearResults& got, const LinearResults& expected, const std::string& what) {
    ASSERT_EQ(got.tensors.size(), expected.tensors.size());
    for (std::size_t n = 0; n < got.tensors.size(); ++n) {
        for (std::int64_t e = 0; e < got.tensors[n].elements(); ++e) {
            const double x = got.tensors[n].as<double>()[e], y = expected.tensors[n].as<double>()[e];
            ASSERT_NEAR(x, y, 1e-10 * (1 + std::fabs(y))) << what << ", result " << n << " [" << e << "]";
        }
    }
}

TEST(CudaLinearAttention, StepsGiveTheReferencesNumbers) {
    Context context(1);
    detail::Place& place = detail::place_of(context);
    const Kernel<LinearAttentionProblem> reference = reference::linear_attention_kernel();
    for (const Kind& kind : kinds) {
        const LinearCase c(kind);
        LinearAttentionProblem ours = c.problem(), theirs = c.problem();
        const LinearResults got = forward_results(c, ours), expected = forward_results(c, theirs);
        forward_by_team(ours);
        reference.forward(place, theirs);
        expect_equal(got, expected, std::string(kind.name) + " forward");

        LinearAttentionProblem back = c.problem(), reference_back = c.problem();
        const LinearResults gradients = backward_results(c, back);
        const LinearResults expected_gradients = backward_results(c, reference_back);
        backward_by_team(back);
        reference.backward(place, reference_back);
        expect_equal(gradients, expected_gradients, std::string(kind.name) + " backward");
    }
}

}  // namespace
}  // namespace heed::cuda
