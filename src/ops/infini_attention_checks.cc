#include "ops/infini_attention_checks.h"

#include "ops/attention_checks.h"
#include "ops/attention_kernels.h"

#include <cmath>
#include <initializer_list>
#include <utility>
#include <vector>

namespace heed {
namespace {

struct InfiniChecker {
    Caller function;
    InfiniProblem problem;
    std::vector<std::pair<const char*, View>> inputs;

    [[noreturn]] void refuse(const std::string& argument, const std::string& expected, const std::string& got) const {
        heed::refuse(function, argument, expected, got);
    }

    void numbers(const InfiniOptions& o) {
        problem.options = o;
        if (o.segment < 1) { refuse("segment", "1 or more tokens", std::to_string(o.segment)); }
        if (o.update > MemoryUpdate::delta) {
            refuse("update", "linear or delta", std::to_string(static_cast<int>(o.update)));
        }
        if (o.first_segment > FirstSegment::gated) {
            refuse("first_segment", "local_only or gated", std::to_string(static_cast<int>(o.first_segment)));
        }
        if (!(o.epsilon > 0) || !std::isfinite(o.epsilon)) {
            refuse("epsilon", "a positive number", std::to_string(o.epsilon));
        }
        if (o.unroll < 0) { refuse("unroll", "a number of segments, or 0 for all", std::to_string(o.unroll)); }
    }

    /// Options that name queries and keys by their place would mean something else in every segment.
    void local(const AttentionOptions& o) {
        const auto absent = [&](const char* name, bool given) {
            if (given) { refuse(std::string("local.") + name, "none: it does not fit segments", "one"); }
        };
        absent("allow", static_cast<bool>(o.allow));
        absent("pattern", static_cast<bool>(o.pattern));
        absent("bias", static_cast<bool>(o.bias));
        absent("query_lengths", static_cast<bool>(o.query_lengths));
        absent("key_lengths", static_cast<bool>(o.key_lengths));
        absent("cu_seqlens_q", static_cast<bool>(o.cu_seqlens_q));
        absent("cu_seqlens_k", static_cast<bool>(o.cu_seqlens_k));
        absent("query_positions", static_cast<bool>(o.query_positions));
        absent("key_positions", static_cast<bool>(o.key_positions));
        absent("dropout", o.dropout.p != 0 || static_cast<bool>(o.dropout.keep));
        if (o.align != Align::bottom_right) { refuse("local.align", "bottom_right", "another"); }
        problem.local = o;
        problem.local.causal = true;
    }

    void kernel(const Context& context, const AttentionProblem& attention) {
        problem.by_reference = choose_attention_kernel(context, function, attention).name == "reference";
    }

    /// After attention's own checks of q, k, v.
    void tensors(const AttentionProblem& p, const View& gates) {
        problem.q = p.q;
        problem.k = p.k;
        problem.v = p.v;
        problem.batch = p.batch;
        problem.heads = p.heads;
        problem.kv_heads = p.kv_heads;
        problem.tokens = p.queries;
        problem.head_size = p.head_size;
        problem.value_size = p.value_size;
        problem.wide = p.q.dtype() == DType::f64 ? DType::f64 : DType::f32;
        if (p.keys != p.queries) {
            refuse("k", "length " + std::to_string(p.queries) + " as in q", std::to_string(p.keys));
        }
        if (!gates) { refuse("gates", to_string(Shape{p.heads}), "none"); }
        if (!(gates.shape() == Shape{p.heads})) {
            refuse("gates", to_string(Shape{p.heads}), to_string(gates.shape()));
        }
        check_dtype(function, "gates", gates, {DType::f32, DType::f64});
        check_memory_or_host(function, "gates", gates);
        problem.gates = gates;
        const InfiniOptions& o = problem.options;
        const auto twin = [&](const char* name, const View& view, const View& of) {
            if (!view) { return; }
            if (!(view.shape() == of.shape())) { refuse(name, to_string(of.shape()), to_string(view.shape())); }
            check_dtype(function, name, view, {of.dtype()});
            check_memory(function, name, view);
        };
        twin("memory_q", o.memory_q, p.q);
        twin("memory_k", o.memory_k, p.k);
        problem.own_memory_q = static_cast<bool>(o.memory_q);
        problem.own_memory_k = static_cast<bool>(o.memory_k);
        problem.memory_q = problem.own_memory_q ? o.memory_q : p.q;
        problem.memory_k = problem.own_memory_k ? o.memory_k : p.k;
        inputs = {
            {"q", p.q}, {"k", p.k}, {"v", p.v}, {"gates", gates}, {"memory_q", o.memory_q}, {"memory_k", o.memory_k}};
    }

    void part(const char* name, const Tensor& tensor, const Shape& shape, DType dtype) {
        if (!tensor || !(tensor.shape() == shape)) {
            refuse(name, to_string(shape), tensor ? to_string(tensor.shape()) : "none");
        }
        check_dtype(function, name, tensor, {dtype});
        check_memory(function, name, tensor);
        inputs.emplace_back(name, tensor.view());
    }
    void memory(const InfiniMemory& memory) {
        const std::int64_t N = problem.options.segment;
        if (memory.segments < 0) { refuse("memory.segments", "0 or more", std::to_string(memory.segments)); }
        if (memory.pending < 0 || memory.pending >= N) {
            refuse("memory.pending", "0 to " + std::to_string(N - 1) + ", less than a segment",
                   std::to_string(memory.pending));
        }
        if (!memory.m && memory.segments == 0 && memory.pending == 0) { return; }
        part("memory.m", memory.m, problem.memory_shape(), problem.wide);
        part("memory.z", memory.z, problem.normaliser_shape(), problem.wide);
        // Room for pending tokens is made by the first call that leaves some.
        if (memory.pending == 0 && !memory.k && !memory.v && !memory.memory_k) { return; }
        const Shape keys{problem.batch, problem.kv_heads, N, problem.head_size};
        part("memory.k", memory.k, keys, problem.q.dtype());
        part("memory.v", memory.v, {problem.batch, problem.kv_heads, N, problem.value_size}, problem.q.dtype());
        if (problem.own_memory_k) { part("memory.memory_k", memory.memory_k, keys, problem.q.dtype()); }
    }

    void apart(const char* name, const View& output) {
        for (const auto& [input, view] : inputs) { check_disjoint(function, name, output, input, view); }
        inputs.emplace_back(name, output);
    }
    void output(const char* name, const View& view, const Shape& shape, std::initializer_list<DType> dtypes) {
        check_output(function, name, view, shape, dtypes);
        apart(name, view);
    }
};

}  // namespace

InfiniProblem checked_infini_forward(const Context& context, Caller function, const InfiniInputs& inputs,
                                     const MutableView& out, const InfiniMemory& memory, const InfiniOptions& options) {
    const auto& [q, k, v, gates] = inputs;
    InfiniChecker checker{function, {}, {}};
    checker.numbers(options);
    checker.local(options.local);
    const AttentionProblem attention = checked_forward(function, q, k, v, {.out = out}, checker.problem.local);
    checker.kernel(context, attention);
    checker.tensors(attention, gates);
    checker.memory(memory);
    checker.apart("out", out);
    return std::move(checker.problem);
}

InfiniProblem checked_infini_backward(const Context& context, Caller function, const InfiniBackwardInputs& inputs,
                                      const InfiniGradients& gradients, const InfiniMemory& before,
                                      const InfiniOptions& options) {
    const View &q = inputs.q, &k = inputs.k, &v = inputs.v, &dout = inputs.dout;
    const InfiniMemoryGradient& after = inputs.after;
    InfiniChecker checker{function, {}, {}};
    InfiniProblem& p = checker.problem;
    checker.numbers(options);
    checker.local(options.local);
    AttentionProblem attention = checked_scores(function, q, k, p.local);
    if (!v || v.rank() != 4 || v.extent(0) != q.extent(0) || v.extent(1) != k.extent(1) || v.extent(2) != k.extent(2) ||
        v.extent(3) < 1) {
        heed::refuse(function, "v", "batch, heads and length of k " + to_string(k.shape()),
                     v ? to_string(v.shape()) : "none");
    }
    check_dtype(function, "v", v, {q.dtype()});
    attention.v = v;
    attention.value_size = v.extent(3);
    checker.kernel(context, attention);
    checker.tensors(attention, inputs.gates);
    checker.memory(before);
    if (before.pending != 0) {
        heed::refuse(function, "before.pending", "0: calls that end with a segment", std::to_string(before.pending));
    }
    const auto read = [&](const char* name, const View& view, const Shape& shape, std::initializer_list<DType> dtypes) {
        if (!(view.shape() == shape)) { heed::refuse(function, name, to_string(shape), to_string(view.shape())); }
        check_dtype(function, name, view, dtypes);
        check_memory(function, name, view);
        checker.inputs.emplace_back(name, view);
    };
    const Shape out_shape{p.batch, p.heads, p.tokens, p.value_size};
    if (!dout) { heed::refuse(function, "dout", "a tensor of shape " + to_string(out_shape), "none"); }
    read("dout", dout, out_shape, {q.dtype(), DType::f32});
    if (after.dm) { read("after.dm", after.dm, p.memory_shape(), {DType::f32, DType::f64}); }
    if (after.dz) { read("after.dz", after.dz, p.normaliser_shape(), {DType::f32, DType::f64}); }
    checker.output("dq", gradients.dq, q.shape(), {q.dtype(), DType::f32});
    checker.output("dk", gradients.dk, k.shape(), {q.dtype(), DType::f32});
    checker.output("dv", gradients.dv, v.shape(), {q.dtype(), DType::f32});
    const auto twin = [&](const char* name, const char* of, const MutableView& view, bool given, const Shape& shape) {
        if (given) {
            checker.output(name, view, shape, {q.dtype(), DType::f32});
        } else if (view) {
            heed::refuse(function, name, std::string("none without ") + of, "a tensor");
        }
    };
    twin("dmemory_q", "memory_q", gradients.dmemory_q, p.own_memory_q, q.shape());
    twin("dmemory_k", "memory_k", gradients.dmemory_k, p.own_memory_k, k.shape());
    const auto on_request = [&](const char* name, const MutableView& view, const Shape& shape) {
        if (view) { checker.output(name, view, shape, {DType::f32, DType::f64}); }
    };
    const auto of_option = [&](const char* name, const char* of, const MutableView& view, const View& option) {
        if (view && !option) { heed::refuse(function, name, std::string("none without local.") + of, "a tensor"); }
        on_request(name, view, option.shape());
    };
    on_request("dgates", gradients.dgates, Shape{p.heads});
    of_option("dsinks", "sinks", gradients.dsinks, p.local.sinks);
    of_option("dalibi_slopes", "alibi_slopes", gradients.dalibi_slopes, p.local.alibi_slopes);
    on_request("dm", gradients.dm, p.memory_shape());
    on_request("dz", gradients.dz, p.normaliser_shape());
    return std::move(p);
}

}  // namespace heed
