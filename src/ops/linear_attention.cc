#include <heed/linear_attention.h>
#include <heed/tensor.h>

#include "cpu/linear_attention/linear_attention.h"
#include "cuda/linear_attention.h"
#include "ops/checks.h"
#include "ops/linear_attention_checks.h"
#include "ops/linear_attention_kernels.h"
#include "ops/row_sums.h"
#include "reference/linear_attention.h"

namespace heed {
namespace {

View with_length_one(const char* function, const char* name, const View& view) {
    if (view.rank() != 3) {
        refuse(function, name, "3 axes [batch, heads, size]", view ? to_string(view.shape()) : "none");
    }
    return View(view.dtype(), view.data(), Shape{view.extent(0), view.extent(1), 1, view.extent(2)},
                Shape{view.stride(0), view.stride(1), 0, view.stride(2)}, view.device());
}

/// [B,N] or [B,N,size] of one token as [B,N,1] or [B,N,1,size]; what has another rank is left to the checks.
View of_one_token(const View& view) {
    if (view.rank() == 2) {
        return View(view.dtype(), view.data(), Shape{view.extent(0), view.extent(1), 1},
                    Shape{view.stride(0), view.stride(1), 0}, view.device());
    }
    if (view.rank() == 3) {
        return View(view.dtype(), view.data(), Shape{view.extent(0), view.extent(1), 1, view.extent(2)},
                    Shape{view.stride(0), view.stride(1), 0, view.stride(2)}, view.device());
    }
    return view;
}

/// Tokens [begin, end) of packed sequences, as a batch of one with the state of its own.
LinearAttentionProblem of_sequence(const LinearAttentionProblem& p, std::int64_t n, std::int64_t begin,
                                   std::int64_t end) {
    LinearAttentionProblem one = p;
    const auto tokens = [&](auto& view) {
        if (view) { view = view.slice(2, begin, end); }
    };
    const auto state = [&](auto& both) {
        if (both.s) { both.s = both.s.slice(0, n, n + 1); }
        if (both.z) { both.z = both.z.slice(0, n, n + 1); }
    };
    one.options.cu_seqlens = {};
    one.queries = one.keys = end - begin;
    for (View* view : {&one.q, &one.k, &one.v, &one.dout, &one.options.log_decay, &one.options.beta}) { tokens(*view); }
    LinearAttentionGradients& g = one.gradients;
    for (MutableView* view : {&one.out, &g.dq, &g.dk, &g.dv, &g.dlog_decay, &g.dbeta}) { tokens(*view); }
    state(one.initial);
    state(one.final);
    state(one.dfinal);
    state(g.dinitial);
    return one;
}

/// Calls run(problem) for each of the packed sequences, and for the tokens behind the last with a length of 0.
template <class Run>
void each_sequence(const LinearAttentionProblem& p, Run run) {
    const View& ends = p.options.cu_seqlens;
    std::int64_t begin = 0;
    for (std::int64_t n = 0; n + 1 < ends.extent(0); ++n) {
        const std::int64_t end = read_integer(ends.dtype(), ends.data(), (n + 1) * ends.stride(0));
        run(of_sequence(p, n, begin, end));
        begin = end;
    }
    if (begin == p.queries) { return; }
    static constexpr std::int64_t nothing = 0;
    LinearAttentionProblem rest = p;
    rest.initial = rest.dfinal = {};
    rest.final = rest.gradients.dinitial = {};
    rest = of_sequence(rest, 0, begin, p.queries);
    rest.options.key_lengths = View(&nothing, Shape{1});
    run(rest);
}

void run_packed_forward(Context& context, const char* function, const LinearAttentionProblem& p) {
    each_sequence(p, [&](const LinearAttentionProblem& one) {
        run_forward(context, linear_attention_kernel_list(), {function}, one);
    });
}

/// The gradient of constant decays is summed over the sequences, in double.
void run_packed_backward(Context& context, const char* function, const LinearAttentionProblem& p) {
    const MutableView& ddecay = p.gradients.ddecay;
    const bool sums = ddecay && detail::place_of(context).explained == nullptr;
    Tensor sum(DType::f64, {p.states}, context.device()), part(DType::f64, {p.states}, context.device());
    each_sequence(p, [&](LinearAttentionProblem one) {
        if (ddecay) { one.gradients.ddecay = part; }
        run_backward(context, linear_attention_kernel_list(), {function}, one);
        if (sums) { accumulate(context, sum, part); }
    });
    if (sums) { store(context, sum, ddecay); }
}

}  // namespace

std::span<const Kernel<LinearAttentionProblem>> linear_attention_kernel_list() {
    static const auto list = kernel_list<LinearAttentionProblem>(
        {cuda::linear_attention_kernels(), cpu::linear_attention_kernels(), {reference::linear_attention_kernel()}});
    return list;
}

std::int64_t linear_states(const LinearAttentionOptions& options, std::int64_t kv_heads) {
    if (options.decay && options.decay.rank() == 1) { return options.decay.extent(0); }
    for (const View& view : {options.log_decay, options.beta}) {
        if (view && view.rank() > 1) { return view.extent(1); }
    }
    return kv_heads;
}

void linear_attend(Context& context, const View& q, const View& k, const View& v, const LinearAttentionOutputs& outputs,
                   const LinearAttentionOptions& options, const LinearState& initial) {
    const LinearAttentionProblem problem =
        checked_linear_forward({"linear_attend", context}, {q, k, v, initial}, outputs, options);
    if (options.cu_seqlens) { return run_packed_forward(context, "linear_attend", problem); }
    run_forward(context, linear_attention_kernel_list(), {"linear_attend"}, problem);
}

void linear_attend_step(Context& context, const View& q, const View& k, const View& v, const MutableView& out,
                        const MutableLinearState& state, const LinearAttentionOptions& options) {
    constexpr const char* function = "linear_attend_step";
    if (!state.s) { refuse(function, "state.s", "a state to move on", "none"); }
    if (options.normalise && !state.z) { refuse(function, "state.z", "a normaliser to move on", "none"); }
    LinearAttentionOptions step = options;
    step.causal = true;
    step.log_decay = of_one_token(options.log_decay);
    step.beta = of_one_token(options.beta);
    if (options.cu_seqlens) { refuse(function, "cu_seqlens", "none for one token", "a tensor"); }
    if (step.form == LinearForm::automatic) { step.form = LinearForm::recurrent; }
    with_length_one(function, "out", out);
    const MutableView out4(out.dtype(), out.data(), Shape{out.extent(0), out.extent(1), 1, out.extent(2)},
                           Shape{out.stride(0), out.stride(1), 0, out.stride(2)}, out.device());
    const LinearAttentionProblem problem =
        checked_linear_forward({function, context},
                               {with_length_one(function, "q", q), with_length_one(function, "k", k),
                                with_length_one(function, "v", v), state},
                               {.out = out4, .final = state}, step);
    run_forward(context, linear_attention_kernel_list(), {function}, problem);
}

void linear_attend_backward(Context& context, const LinearAttentionBackwardInputs& inputs,
                            const LinearAttentionGradients& gradients, const LinearAttentionOptions& options) {
    const LinearAttentionProblem problem =
        checked_linear_backward({"linear_attend_backward", context}, inputs, gradients, options);
    if (options.cu_seqlens) { return run_packed_backward(context, "linear_attend_backward", problem); }
    run_backward(context, linear_attention_kernel_list(), {"linear_attend_backward"}, problem);
}

}  // namespace heed
