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
    LinearAttentionProblem problem{};
    std::vector<std::pair<const char*, View>> inputs{};
    std::int64_t sequences = -1;  ///< where they are packed

    [[noreturn]] void refuse(const std::string& argument, const std::string& expected, const std::string& got) const {
        heed::refuse(function, argument, expected, got);
    }

    void tensors(const LinearAttentionInputs& given) {
        const auto& [q, k, v, initial] = given;
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
        p.initial = initial;
    }

    /// What both passes are given.
    void call(const LinearAttentionInputs& given, const LinearAttentionOptions& options) {
        tensors(given);
        numbers(options);
        decay();
        gates();
        lengths();
        packing();
        state("initial.s", "initial.z", given.initial, true);
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
        check_memory_or_host(function, "decay", decays);
        problem.states = decays.extent(0);
        const bool readable = decays.device().kind == DeviceKind::cpu;
        for (std::int64_t n = 0; readable && n < problem.states; ++n) {
            if (const double value = problem.decay(n); !(value >= 0 && value <= 1)) {
                refuse("decay[" + std::to_string(n) + "]", "0 to 1", std::to_string(value));
            }
        }
        inputs.emplace_back("decay", decays);
    }

    /// [B,N,T] or [B,N,T,size]
    void per_token(const char* name, const View& view, std::int64_t size) {
        const Shape one{problem.batch, problem.states, problem.queries};
        const Shape each{problem.batch, problem.states, problem.queries, size};
        if (!(view.shape() == one) && !(view.shape() == each)) {
            refuse(name, to_string(one) + " or " + to_string(each), to_string(view.shape()));
        }
        check_dtype(function, name, view, float_types);
        check_memory(function, name, view);
        inputs.emplace_back(name, view);
    }
    /// As many states as decays or betas have heads.
    void states_of(const char* name, const View& view) {
        const std::int64_t heads = view.rank() < 2 ? 0 : view.extent(1);
        if (heads != problem.kv_heads && heads != problem.heads) {
            refuse(
                name,
                "as many heads as k or q, " + std::to_string(problem.kv_heads) + " or " + std::to_string(problem.heads),
                to_string(view.shape()));
        }
        problem.states = heads;
    }

    void gates() {
        const LinearAttentionOptions& o = problem.options;
        if (o.rule > UpdateRule::delta) { refuse("rule", "sum or delta", std::to_string(static_cast<int>(o.rule))); }
        const bool delta = o.rule == UpdateRule::delta;
        if (delta && !o.causal) { refuse("rule", "sum without causal", "delta"); }
        if (delta && o.normalise) { refuse("normalise", "false with the delta rule", "true"); }
        if (o.beta && !delta) { refuse("beta", "none without the delta rule", "a tensor"); }
        if (o.log_decay && !o.causal) { refuse("log_decay", "none without causal", "a tensor"); }
        if (o.log_decay && o.decay) { refuse("log_decay", "none beside decay", "a tensor"); }
        if (o.beta && !o.decay) { states_of("beta", o.beta); }
        if (o.log_decay) { states_of("log_decay", o.log_decay); }
        if (o.log_decay) { per_token("log_decay", o.log_decay, problem.feature_size); }
        if (o.beta) { per_token("beta", o.beta, problem.value_size); }
    }

    /// Sequences that lie end to end: states of a batch of as many.
    void packing() {
        const View& view = problem.options.cu_seqlens;
        if (!view) { return; }
        if (!problem.options.causal) { refuse("cu_seqlens", "none without causal", "a tensor"); }
        if (problem.options.key_lengths) { refuse("key_lengths", "none where sequences are packed", "a tensor"); }
        if (problem.batch != 1) {
            refuse("q", "batch 1 where sequences are packed (cu_seqlens)", std::to_string(problem.batch));
        }
        if (view.device().kind != DeviceKind::cpu) {
            refuse("cu_seqlens", "memory of the CPU", "memory on " + to_string(view.device()));
        }
        check_cumulative(function, "cu_seqlens", view, problem.queries);
        inputs.emplace_back("cu_seqlens", view);
        sequences = view.extent(0) - 1;
    }
    std::int64_t state_batch() const { return sequences < 0 ? problem.batch : sequences; }

    void lengths() {
        const View& view = problem.options.key_lengths;
        if (!view) { return; }
        check_lengths(function, "key_lengths", view, problem.batch, problem.keys);
        inputs.emplace_back("key_lengths", view);
    }

    Shape matrix_shape() const { return {state_batch(), problem.states, problem.feature_size, problem.value_size}; }
    Shape normaliser_shape() const { return {state_batch(), problem.states, problem.feature_size}; }

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
            check_memory(function, name, view);
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
            check_disjoint(function, name, view, input, memory);
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

LinearAttentionProblem checked_linear_forward(Caller function, const LinearAttentionInputs& inputs,
                                              const LinearAttentionOutputs& outputs,
                                              const LinearAttentionOptions& options) {
    LinearChecker checker{.function = function};
    LinearAttentionProblem& p = checker.problem;
    checker.call(inputs, options);
    checker.output("out", outputs.out, Shape{p.batch, p.heads, p.queries, p.value_size},
                   {inputs.q.dtype(), DType::f32});
    checker.state_output("final.s", "final.z", outputs.final, inputs.initial);
    p.out = outputs.out;
    p.final = outputs.final;
    return std::move(p);
}

LinearAttentionProblem checked_linear_backward(Caller function, const LinearAttentionBackwardInputs& inputs,
                                               const LinearAttentionGradients& gradients,
                                               const LinearAttentionOptions& options) {
    LinearChecker checker{.function = function};
    LinearAttentionProblem& p = checker.problem;
    const auto& [q, k, v, initial, dout, dfinal] = inputs;
    checker.call({q, k, v, initial}, options);
    if (options.feature == FeatureMap::function && !options.feature_function.backward) {
        heed::refuse(function, "feature_function.backward", "a function", "none");
    }
    checker.state("dfinal.s", "dfinal.z", dfinal, false);
    const Shape out_shape{p.batch, p.heads, p.queries, p.value_size};
    if (!dout) { heed::refuse(function, "dout", "a tensor of shape " + to_string(out_shape), "none"); }
    if (!(dout.shape() == out_shape)) { heed::refuse(function, "dout", to_string(out_shape), to_string(dout.shape())); }
    check_dtype(function, "dout", dout, {q.dtype(), DType::f32});
    check_memory(function, "dout", dout);
    checker.inputs.emplace_back("dout", dout);
    checker.output("dq", gradients.dq, q.shape(), {q.dtype(), DType::f32});
    checker.output("dk", gradients.dk, k.shape(), {q.dtype(), DType::f32});
    checker.output("dv", gradients.dv, v.shape(), {q.dtype(), DType::f32});
    checker.state_output("dinitial.s", "dinitial.z", gradients.dinitial, {});
    if (gradients.ddecay) {
        if (!options.decay) { heed::refuse(function, "ddecay", "none without decay", "a tensor"); }
        checker.output("ddecay", gradients.ddecay, options.decay.shape(), {DType::f32, DType::f64});
    }
    const auto gate = [&](const char* name, const MutableView& gradient, const char* of, const View& input) {
        if (!gradient) { return; }
        if (!input) { heed::refuse(function, name, std::string("none without ") + of, "a tensor"); }
        checker.output(name, gradient, input.shape(), {input.dtype(), DType::f32, DType::f64});
    };
    gate("dlog_decay", gradients.dlog_decay, "log_decay", options.log_decay);
    gate("dbeta", gradients.dbeta, "beta", options.beta);
    p.dout = dout;
    p.dfinal = dfinal;
    p.gradients = gradients;
    return std::move(p);
}

}  // namespace heed
