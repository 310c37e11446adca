#include "ops/attention_checks.h"

#include "ops/mask_blocks.h"
#include "ops/pattern_node.h"

#include <cmath>

namespace heed {

namespace {

/// A problem that nothing is known of. To be copied: dozens of views that are set one by one take a quarter of the time
/// in which a call is checked.
const AttentionProblem& blank() {
    static const AttentionProblem problem;
    return problem;
}

struct AttentionChecker {
    Caller function;
    AttentionProblem& problem;  ///< filled in where it stays: it is large, and a short call notices a copy

    [[noreturn]] void refuse(const std::string& argument, const std::string& expected, const std::string& got) const {
        heed::refuse(function, argument, expected, got);
    }

    /// Sizes from q and k, and what they must have in common.
    void queries_and_keys(const View& q, const View& k) {
        check_rank4(function, "q", q);
        check_rank4(function, "k", k);
        check_dtype(function, "q", q, float_types);
        check_dtype(function, "k", k, {q.dtype()});
        problem.q = q;
        problem.k = k;
        problem.batch = q.extent(0);
        problem.heads = q.extent(1);
        problem.queries = q.extent(2);
        problem.head_size = q.extent(3);
        problem.kv_heads = k.extent(1);
        problem.keys = k.extent(2);
        if (k.extent(0) != problem.batch) {
            refuse("k", "batch " + std::to_string(problem.batch) + " as in q", std::to_string(k.extent(0)));
        }
        if (k.extent(3) != problem.head_size) {
            refuse("k", "head size " + std::to_string(problem.head_size) + " as in q", std::to_string(k.extent(3)));
        }
        if (problem.head_size < 1) { refuse("q", "a head size of at least 1", to_string(q.shape())); }
        head_counts();
    }

    void head_counts() const {
        const std::int64_t heads = problem.heads;
        const std::int64_t kv = problem.kv_heads;
        if (heads < 1 || kv < 1 || heads % kv != 0) {
            std::string choices;
            for (std::int64_t n = heads; n >= 1; --n) {
                if (heads % n == 0) { choices += (choices.empty() ? "" : n == 1 ? " or " : ", ") + std::to_string(n); }
            }
            refuse("k", (heads < 1 ? "1" : choices) + " heads for the " + std::to_string(heads) + " of q",
                   std::to_string(kv));
        }
    }

    void values(const View& v) {
        check_rank4(function, "v", v);
        check_dtype(function, "v", v, {problem.q.dtype()});
        problem.v = v;
        problem.value_size = v.extent(3);
        const Shape expected{problem.k.extent(0), problem.kv_heads, problem.keys, problem.value_size};
        if (!(v.shape() == expected)) {
            refuse("v", "batch, heads and length of k " + to_string(problem.k.shape()), to_string(v.shape()));
        }
        if (problem.value_size < 1) { refuse("v", "a head size of at least 1", to_string(v.shape())); }
    }

    /// Each axis 1 or that of [B,H,T,S]. Packed: T and S of the longest sequence.
    void pairwise(const char* name, const View& view) const {
        if (view.rank() != 4) { refuse(name, "4 axes, each of [B,H,T,S] or 1", to_string(view.shape())); }
        check_memory(function, name, view);
        std::int64_t longest_queries = problem.packed ? 0 : problem.queries;
        std::int64_t longest_keys = problem.packed ? 0 : problem.keys;
        for (std::int64_t b = 0; problem.packed && b < problem.batch; ++b) {
            const Sequence s = problem.sequence(b);
            longest_queries = std::max(longest_queries, s.queries);
            longest_keys = std::max(longest_keys, s.keys);
        }
        const std::int64_t full[4] = {problem.batch, problem.heads, longest_queries, longest_keys};
        for (int axis = 0; axis < 4; ++axis) {
            if (view.extent(axis) != 1 && view.extent(axis) != full[axis]) {
                refuse(name, "each axis of " + to_string(Shape{full[0], full[1], full[2], full[3]}) + " or 1",
                       to_string(view.shape()));
            }
        }
    }

    void one_axis(const char* name, const View& view, std::int64_t extent) const {
        if (view.rank() != 1 || view.extent(0) != extent) {
            refuse(name, "shape " + to_string(Shape{extent}), to_string(view.shape()));
        }
        check_memory_or_host(function, name, view);
    }

    void lengths(const char* name, const View& view, std::int64_t most) const {
        if (!view) { return; }
        if (problem.packed) { refuse(name, "none where sequences are packed (cu_seqlens)", "a tensor"); }
        check_lengths(function, name, view, problem.batch, most);
    }

    void packing() {
        const AttentionOptions& o = problem.options;
        if (!o.cu_seqlens_q && !o.cu_seqlens_k) { return; }
        if (!o.cu_seqlens_q || !o.cu_seqlens_k) {
            refuse(o.cu_seqlens_q ? "cu_seqlens_k" : "cu_seqlens_q", "both cumulative lengths", "one");
        }
        if (problem.batch != 1) {
            refuse("q", "batch 1 where sequences are packed (cu_seqlens)", std::to_string(problem.batch));
        }
        check_cumulative(function, "cu_seqlens_q", o.cu_seqlens_q, problem.queries);
        check_cumulative(function, "cu_seqlens_k", o.cu_seqlens_k, problem.keys);
        if (o.cu_seqlens_k.extent(0) != o.cu_seqlens_q.extent(0)) {
            refuse("cu_seqlens_k", to_string(o.cu_seqlens_q.shape()) + " as cu_seqlens_q",
                   to_string(o.cu_seqlens_k.shape()));
        }
        problem.packed = true;
        problem.batch = o.cu_seqlens_q.extent(0) - 1;
    }

    void positions(const char* name, const View& view, std::int64_t extent) const {
        if (!view) { return; }
        const std::int64_t batch = problem.packed ? 1 : problem.batch;
        if (view.rank() != 2 || view.extent(1) != extent || (view.extent(0) != batch && view.extent(0) != 1)) {
            refuse(name, to_string(Shape{batch, extent}) + " or " + to_string(Shape{1, extent}),
                   to_string(view.shape()));
        }
        check_dtype(function, name, view, {DType::i64, DType::i32});
        check_memory_or_host(function, name, view);
        if (view.device().kind != DeviceKind::cpu) { return; }
        for (std::int64_t b = 0; b < view.extent(0); ++b) {
            for (std::int64_t n = 0; n < extent; ++n) {
                const std::int64_t value =
                    read_integer(view.dtype(), view.data(), b * view.stride(0) + n * view.stride(1));
                if (value > largest_position || value < -largest_position) {
                    refuse(name, "positions within 2^53", std::to_string(value));
                }
            }
        }
    }

    void numbers() {
        AttentionOptions& o = problem.options;
        if (o.scale && !std::isfinite(*o.scale)) { refuse("scale", "a finite number", std::to_string(*o.scale)); }
        problem.scale = o.scale ? *o.scale : 1 / std::sqrt(static_cast<double>(problem.head_size));
        if (!(o.softcap >= 0) || !std::isfinite(o.softcap)) {
            refuse("softcap", "0 (none) or a positive number", std::to_string(o.softcap));
        }
        if (!(o.dropout.p >= 0 && o.dropout.p < 1)) { refuse("dropout.p", "0 <= p < 1", std::to_string(o.dropout.p)); }
        if (o.dropout.p > 0 && !o.dropout.seed && !o.dropout.keep) {
            refuse("dropout.seed", "a number, as dropout.p is above 0 and no mask is given", "none");
        }
        const auto side = [&](const char* name, std::int64_t& value) {
            if (value < -1) { refuse(name, "-1 (unlimited) or more", std::to_string(value)); }
            value = std::min(value, 2 * largest_position);
        };
        side("window.left", o.window.left);
        side("window.right", o.window.right);
        if (o.align != Align::bottom_right && o.align != Align::top_left) {
            refuse("align", "bottom_right or top_left", std::to_string(static_cast<int>(o.align)));
        }
    }

    void all_options(const AttentionOptions& options) {
        problem.options = options;
        numbers();
        packing();
        const AttentionOptions& o = problem.options;
        lengths("query_lengths", o.query_lengths, problem.queries);
        lengths("key_lengths", o.key_lengths, problem.keys);
        positions("query_positions", o.query_positions, problem.queries);
        positions("key_positions", o.key_positions, problem.keys);
        if (o.allow) {
            pairwise("allow", o.allow);
            check_dtype(function, "allow", o.allow, {DType::u8, DType::boolean});
        }
        if (o.dropout.keep) {
            pairwise("dropout.keep", o.dropout.keep);
            check_dtype(function, "dropout.keep", o.dropout.keep, {DType::u8, DType::boolean});
        }
        if (o.bias) {
            pairwise("bias", o.bias);
            check_dtype(function, "bias", o.bias, float_types);
        }
        if (o.alibi_slopes) {
            if (o.alibi_slopes.rank() == 2) {
                if (!(o.alibi_slopes.shape() == Shape{problem.batch, problem.heads})) {
                    refuse("alibi_slopes",
                           to_string(Shape{problem.heads}) + " or " + to_string(Shape{problem.batch, problem.heads}),
                           to_string(o.alibi_slopes.shape()));
                }
                check_memory_or_host(function, "alibi_slopes", o.alibi_slopes);
            } else {
                one_axis("alibi_slopes", o.alibi_slopes, problem.heads);
            }
            check_dtype(function, "alibi_slopes", o.alibi_slopes, {DType::f32, DType::f64});
        }
        if (o.sinks) {
            one_axis("sinks", o.sinks, problem.heads);
            check_dtype(function, "sinks", o.sinks, {DType::f32, DType::f64});
        }
        if (o.pattern) { o.pattern.check(function, problem.batch, problem.heads); }
        reach();
    }

    void reach() {
        const AttentionOptions& o = problem.options;
        problem.reach = o.window;
        if (o.causal) { problem.reach.right = 0; }
        problem.sparse = without_bands(o.pattern, problem.reach.left, problem.reach.right);
        if (o.allow) { problem.sparse = problem.sparse & detail::visible_blocks(problem); }
        for (std::int64_t* side : {&problem.reach.left, &problem.reach.right}) {
            *side = std::min(*side, 2 * largest_position);
        }
    }

    Shape output_shape() const { return {problem.q.extent(0), problem.heads, problem.queries, problem.value_size}; }
    Shape row_shape() const { return {problem.q.extent(0), problem.heads, problem.queries}; }

    void outputs(const MutableView& out, const MutableView& lse) {
        const View written = out;
        check_output(function, "out", written, output_shape(), {problem.q.dtype(), DType::f32});
        apart("out", written, {});
        if (lse) {
            check_output(function, "lse", lse, row_shape(), {DType::f32, DType::f64});
            apart("lse", lse, {});
            check_disjoint(function, "lse", lse, "out", written);
        }
        problem.out = out;
        problem.lse = lse;
    }

    void apart(const char* name, const View& output, std::initializer_list<View> more_inputs) const {
        const AttentionOptions& o = problem.options;
        const auto check = [&](const char* input, const View& view) {
            if (view) { check_disjoint(function, name, output, input, view); }
        };
        check("q", problem.q);
        check("k", problem.k);
        check("v", problem.v);
        check("allow", o.allow);
        check("bias", o.bias);
        check("alibi_slopes", o.alibi_slopes);
        check("sinks", o.sinks);
        check("dropout.keep", o.dropout.keep);
        check("query_lengths", o.query_lengths);
        check("key_lengths", o.key_lengths);
        check("cu_seqlens_q", o.cu_seqlens_q);
        check("cu_seqlens_k", o.cu_seqlens_k);
        check("query_positions", o.query_positions);
        check("key_positions", o.key_positions);
        for (const View& view : more_inputs) { check("the other inputs", view); }
    }
};

}  // namespace

AttentionProblem checked_scores(Caller function, const View& q, const View& k, const AttentionOptions& options) {
    AttentionProblem problem = blank();
    AttentionChecker checker{function, problem};
    checker.queries_and_keys(q, k);
    checker.all_options(options);
    return problem;
}

AttentionProblem checked_forward(Caller function, const View& q, const View& k, const View& v,
                                 const AttentionOutputs& outputs, const AttentionOptions& options) {
    AttentionProblem problem = blank();
    AttentionChecker checker{function, problem};
    checker.queries_and_keys(q, k);
    checker.values(v);
    checker.all_options(options);
    checker.outputs(outputs.out, outputs.lse);
    return problem;
}

AttentionProblem checked_cached(Caller function, const View& q, const AttentionShape& sizes,
                                const AttentionOutputs& outputs, const AttentionOptions& options) {
    check_rank4(function, "q", q);
    check_dtype(function, "q", q, float_types);
    const Shape expected{1, q.extent(1), sizes.queries, sizes.head_size};
    if (!(q.shape() == expected)) { refuse(function, "q", to_string(expected), to_string(q.shape())); }
    AttentionProblem p = blank();
    AttentionChecker checker{function, p};
    p.q = q;
    p.batch = 1;
    p.heads = q.extent(1);
    p.queries = sizes.queries;
    p.head_size = sizes.head_size;
    p.kv_heads = sizes.kv_heads;
    p.keys = sizes.keys;
    p.value_size = sizes.value_size;
    checker.head_counts();
    checker.all_options(options);
    checker.outputs(outputs.out, outputs.lse);
    return p;
}

AttentionProblem checked_backward(Caller function, const AttentionBackwardInputs& inputs,
                                  const AttentionGradients& gradients, const AttentionOptions& options) {
    const auto& [q, k, v, out, lse, dout, dlse] = inputs;
    AttentionProblem p = blank();
    AttentionChecker checker{function, p};
    checker.queries_and_keys(q, k);
    checker.values(v);
    checker.all_options(options);
    const auto same = [&](const char* name, const View& view, const Shape& shape) {
        if (!view) { refuse(function, name, "a tensor of shape " + to_string(shape), "none"); }
        if (!(view.shape() == shape)) { refuse(function, name, to_string(shape), to_string(view.shape())); }
        check_memory(function, name, view);
    };
    same("out", out, checker.output_shape());
    check_dtype(function, "out", out, {q.dtype(), DType::f32});
    same("dout", dout, checker.output_shape());
    check_dtype(function, "dout", dout, {q.dtype(), DType::f32});
    same("lse", lse, checker.row_shape());
    check_dtype(function, "lse", lse, {DType::f32, DType::f64});
    if (dlse) {
        same("dlse", dlse, checker.row_shape());
        check_dtype(function, "dlse", dlse, {DType::f32, DType::f64});
    }
    const auto gradient = [&](const char* name, const MutableView& view, const Shape& shape,
                              std::initializer_list<DType> dtypes) {
        check_output(function, name, view, shape, dtypes);
        checker.apart(name, view, {out, lse, dout, dlse});
    };
    gradient("dq", gradients.dq, q.shape(), {q.dtype(), DType::f32});
    gradient("dk", gradients.dk, k.shape(), {q.dtype(), DType::f32});
    gradient("dv", gradients.dv, v.shape(), {q.dtype(), DType::f32});
    const auto on_request = [&](const char* name, const char* of, const MutableView& view, const View& option) {
        if (!view) { return; }
        if (!option) { refuse(function, name, std::string("none without ") + of, "a tensor"); }
        gradient(name, view, option.shape(), {DType::f32, DType::f64});
    };
    on_request("dbias", "bias", gradients.dbias, options.bias);
    on_request("dsinks", "sinks", gradients.dsinks, options.sinks);
    on_request("dalibi_slopes", "alibi_slopes", gradients.dalibi_slopes, options.alibi_slopes);
    const MutableView outputs[] = {gradients.dq,    gradients.dk,     gradients.dv,
                                   gradients.dbias, gradients.dsinks, gradients.dalibi_slopes};
    const char* names[] = {"dq", "dk", "dv", "dbias", "dsinks", "dalibi_slopes"};
    for (int a = 0; a < 6; ++a) {
        for (int b = 0; b < a; ++b) { check_disjoint(function, names[a], outputs[a], names[b], outputs[b]); }
    }
    p.forward_out = out;
    p.forward_lse = lse;
    p.dout = dout;
    p.dlse = dlse;
    p.gradients = gradients;
    return p;
}

AttentionProblem checked_shape(Caller function, const AttentionShape& shape, const AttentionOptions& options) {
    const auto positive = [&](const char* name, std::int64_t value, std::int64_t least) {
        if (value < least) { refuse(function, name, std::to_string(least) + " or more", std::to_string(value)); }
    };
    positive("batch", shape.batch, 0);
    positive("heads", shape.heads, 1);
    positive("kv_heads", shape.kv_heads, 1);
    positive("queries", shape.queries, 0);
    positive("keys", shape.keys, 0);
    positive("head_size", shape.head_size, 1);
    positive("value_size", shape.value_size, 1);
    // Views of these shapes with nothing behind them: the checks look at sizes, never at elements.
    static const char nothing = 0;
    const auto sized = [&](std::int64_t heads, std::int64_t length, std::int64_t size) {
        return View(shape.dtype, &nothing, Shape{shape.batch, heads, length, size});
    };
    AttentionProblem problem = blank();
    AttentionChecker checker{function, problem};
    checker.queries_and_keys(sized(shape.heads, shape.queries, shape.head_size),
                             sized(shape.kv_heads, shape.keys, shape.head_size));
    checker.values(sized(shape.kv_heads, shape.keys, shape.value_size));
    checker.all_options(options);
    return problem;
}

}  // namespace heed
