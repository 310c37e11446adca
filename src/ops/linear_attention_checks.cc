#include "ops/linear_attention_checks.h"

#include "base/overlap.h"
#include "ops/checks.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace heed {
namespace {

struct LinearChecker {
    Caller function;
    LinearAttentionProblem problem;
    std::vector<std::pair<const char*, View>> inputs;

    [[noreturn]] void refuse(const std::string& argument, const std::string& expected, const std::string& got) const {
        heed::refuse(function, argument, expected, got);
    }

    void tensors(const View& q, const View& k, const View& v) {
        check_rank4(function, "q", q);
        check_rank4(function, "k", k);
        check_rank4(function, "v", v);
        check_dtype(function, "q", q, float_types);
        check_dtype(function, "k", k, {q.dtype()});
        check_dtype(function, "v", v, {q.dtype()});
        LinearAttentionProblem& p = problem;
        p.q = q;
        p.k = k;
        p.v = v;
        p.batch = q.extent(0);
        p.heads = q.extent(1);
        p.queries = q.extent(2);
        p.head_size = q.extent(3);
        p.kv_heads = k.extent(1);
        p.keys = k.extent(2);
        p.value_size = v.extent(3);
        if (p.head_size < 1) { refuse("q", "a head size of at least 1", to_string(q.shape())); }
        if (p.value_size < 1) { refuse("v", "a head size of at least 1", to_string(v.shape())); }
        if (p.heads < 1 || p.kv_heads < 1 || p.heads % p.kv_heads != 0) {
            refuse("k", "a number of heads that divides the " + std::to_string(p.heads) + " of q",
                   std::to_string(p.kv_heads));
        }
        const Shape keys{p.batch, p.kv_heads, p.keys, p.head_size};
        if (!(k.shape() == keys)) { refuse("k", to_string(keys) + " to go with q", to_string(k.shape())); }
        const Shape values{p.batch, p.kv_heads, p.keys, p.value_size};
        if (!(v.shape() == values)) { refuse("v", to_string(values) + " to go with k", to_string(v.shape())); }
        inputs = {{"q", q}, {"k", k}, {"v", v}};
    }

    void numbers(const LinearAttentionOptions& o) {
        problem.options = o;
        problem.feature_size = problem.head_size;
        if (o.feature > FeatureMap::function) {
            refuse("feature", "elu_plus_one, relu, identity or function", std::to_string(static_cast<int>(o.feature)));
        }
        if (o.form > LinearForm::quadratic) {
            refuse("form", "automatic, recurrent, chunked or quadratic", std::to_string(static_cast<int>(o.form)));
        }
        if (o.feature == FeatureMap::function) {
            if (!o.feature_function.map) { refuse("feature_function.map", "a function", "none"); }
            if (o.feature_function.size < 0) {
                refuse("feature_function.size", "1 or more, or 0 for the head size",
                       std::to_string(o.feature_function.size));
            }
            if (o.feature_function.size > 0) { problem.feature_size = o.feature_function.size; }
        }
        if (!(o.epsilon >= 0) || !std::isfinite(o.epsilon)) {
            refuse("epsilon", "0 or a positive number", std::to_string(o.epsilon));
        }
        if (!std::isfinite(o.scale)) { refuse("scale", "a finite number", std::to_string(o.scale)); }
        if (o.chunk < 0) { refuse("chunk", "1 or more, or 0 for the fastest", std::to_string(o.chunk)); }
        if (o.causal && problem.keys != problem.queries) {
            refuse("k", "length " + std::to_string(problem.queries) + " as in q where causal",
                   std::to_string(problem.keys));
        }
    }

    void decay() {
        const View& decays = problem.options.decay;
        problem.states = problem.kv_heads;
        if (!decays) { return; }
        if (!problem.options.causal) { refuse("decay", "none without causal", "a tensor"); }
        if (decays.rank() != 1 || (decays.extent(0) != problem.kv_heads && decays.extent(0) != problem.heads)) {
            refuse("decay", to_string(Shape{problem.kv_heads}) + " or " + to_string(Shape{problem.heads}),
                   to_string(decays.shape()));
        }
        check_dtype(function, "decay", decays, {DType::f32, DType::f64});
        problem.states = decays.extent(0);
        for (std::int64_t n = 0; n < problem.states; ++n) {
            if (const double value = problem.decay(n); !(value >= 0 && value <= 1)) {
                refuse("decay[" + std::to_string(n) + "]", "0 to 1", std::to_string(value));
            }
        }
        inputs.emplace_back("decay", decays);
    }

    void lengths() {
        const View& view = problem.options.key_lengths;
        if (!view) { return; }
        check_lengths(function, "key_lengths", view, problem.batch, problem.keys);
        inputs.emplace_back("key_lengths", view);
    }

    Shape matrix_shape() const { return {problem.batch, problem.states, problem.feature_size, problem.value_size}; }
    Shape normaliser_shape() const { return {problem.batch, problem.states, problem.feature_size}; }

    void wanted_normaliser(const char* name, const View& z) const {
        if (z && !problem.options.normalise) { refuse(name, "none without normalise", "a tensor"); }
    }
    /// A state that is read; where `whole`, both parts or neither.
    void state(const char* s_name, const char* z_name, const LinearState& state, bool whole) {
        wanted_normaliser(z_name, state.z);
        if (whole && problem.options.normalise && static_cast<bool>(state.s) != static_cast<bool>(state.z)) {
            refuse(state.s ? z_name : s_name, "both parts of the state, or none", "one");
        }
        const auto part = [&](const char* name, const View& view, const Shape& shape) {
            if (!view) { return; }
            if (!(view.shape() == shape)) { refuse(name, to_string(shape), to_string(view.shape())); }
            check_dtype(function, name, view, {DType::f32, DType::f64});
            inputs.emplace_back(name, view);
        };
        part(s_name, state.s, matrix_shape());
        part(z_name, state.z, normaliser_shape());
    }

    void output(const char* name, const View& view, const Shape& shape, std::initializer_list<DType> dtypes,
                const View& may_be = {}) {
        check_output(function, name, view, shape, dtypes);
        for (const auto& [input, memory] : inputs) {
            if (may_be && same_memory(view, may_be) && same_memory(view, memory)) { continue; }
            check_apart(function, name, view, input, memory);
        }
        inputs.emplace_back(name, view);
    }
    void state_output(const char* s_name, const char* z_name, const MutableLinearState& state,
                      const LinearState& may_be) {
        wanted_normaliser(z_name, state.z);
        if (state.s) { output(s_name, state.s, matrix_shape(), {DType::f32, DType::f64}, may_be.s); }
        if (state.z) { output(z_name, state.z, normaliser_shape(), {DType::f32, DType::f64}, may_be.z); }
    }
};

}  // namespace

LinearAttentionProblem checked_linear_forward(Caller function, const View& q, const View& k, const View& v,
                                              const MutableView& out, const LinearAttentionOptions& options,
                                              const LinearState& initial, const MutableLinearState& final) {
    LinearChecker checker{function, {}, {}};
    LinearAttentionProblem& p = checker.problem;
    checker.tensors(q, k, v);
    checker.numbers(options);
    checker.decay();
    checker.lengths();
    checker.state("initial.s", "initial.z", initial, true);
    checker.output("out", out, Shape{p.batch, p.heads, p.queries, p.value_size}, {q.dtype(), DType::f32});
    checker.state_output("final.s", "final.z", final, initial);
    p.initial = initial;
    p.out = out;
    p.final = final;
    return std::move(p);
}

LinearAttentionProblem checked_linear_backward(Caller function, const View& q, const View& k, const View& v,
                                               const View& dout, const LinearAttentionGradients& gradients,
                                               const LinearAttentionOptions& options, const LinearState& initial,
                                               const LinearState& dfinal) {
    LinearChecker checker{function, {}, {}};
    LinearAttentionProblem& p = checker.problem;
    checker.tensors(q, k, v);
    checker.numbers(options);
    if (options.feature == FeatureMap::function && !options.feature_function.backward) {
        heed::refuse(function, "feature_function.backward", "a function", "none");
    }
    checker.decay();
    checker.lengths();
    checker.state("initial.s", "initial.z", initial, true);
    checker.state("dfinal.s", "dfinal.z", dfinal, false);
    const Shape out_shape{p.batch, p.heads, p.queries, p.value_size};
    if (!dout) { heed::refuse(function, "dout", "a tensor of shape " + to_string(out_shape), "none"); }
    if (!(dout.shape() == out_shape)) { heed::refuse(function, "dout", to_string(out_shape), to_string(dout.shape())); }
    check_dtype(function, "dout", dout, {q.dtype(), DType::f32});
    checker.inputs.emplace_back("dout", dout);
    checker.output("dq", gradients.dq, q.shape(), {q.dtype(), DType::f32});
    checker.output("dk", gradients.dk, k.shape(), {q.dtype(), DType::f32});
    checker.output("dv", gradients.dv, v.shape(), {q.dtype(), DType::f32});
    checker.state_output("dinitial.s", "dinitial.z", gradients.dinitial, {});
    if (gradients.ddecay) {
        if (!options.decay) { heed::refuse(function, "ddecay", "none without decay", "a tensor"); }
        checker.output("ddecay", gradients.ddecay, options.decay.shape(), {DType::f32, DType::f64});
    }
    p.initial = initial;
    p.dout = dout;
    p.dfinal = dfinal;
    p.gradients = gradients;
    return std::move(p);
}

}  // namespace heed
