#include <heed/linear_attention.h>

#include "cpu/linear_attention/linear_attention.h"
#include "ops/checks.h"
#include "ops/linear_attention_checks.h"
#include "ops/linear_attention_kernels.h"
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

}  // namespace

std::span<const Kernel<LinearAttentionProblem>> linear_attention_kernel_list() {
    static const auto list =
        kernel_list<LinearAttentionProblem>({cpu::linear_attention_kernels(), {reference::linear_attention_kernel()}});
    return list;
}

std::int64_t linear_states(const LinearAttentionOptions& options, std::int64_t kv_heads) {
    return options.decay && options.decay.rank() == 1 ? options.decay.extent(0) : kv_heads;
}

void linear_attend(Context& context, const View& q, const View& k, const View& v, const MutableView& out,
                   const LinearAttentionOptions& options, const LinearState& initial, const MutableLinearState& final) {
    const LinearAttentionProblem problem =
        checked_linear_forward({"linear_attend", context}, q, k, v, out, options, initial, final);
    run_forward(context, linear_attention_kernel_list(), {"linear_attend"}, problem);
}

void linear_attend_step(Context& context, const View& q, const View& k, const View& v, const MutableView& out,
                        const MutableLinearState& state, const LinearAttentionOptions& options) {
    constexpr const char* function = "linear_attend_step";
    if (!state.s) { refuse(function, "state.s", "a state to move on", "none"); }
    if (options.normalise && !state.z) { refuse(function, "state.z", "a normaliser to move on", "none"); }
    LinearAttentionOptions step = options;
    step.causal = true;
    if (step.form == LinearForm::automatic) { step.form = LinearForm::recurrent; }
    with_length_one(function, "out", out);
    const MutableView out4(out.dtype(), out.data(), Shape{out.extent(0), out.extent(1), 1, out.extent(2)},
                           Shape{out.stride(0), out.stride(1), 0, out.stride(2)}, out.device());
    const LinearAttentionProblem problem = checked_linear_forward(
        {function, context}, with_length_one(function, "q", q), with_length_one(function, "k", k),
        with_length_one(function, "v", v), out4, step, state, state);
    run_forward(context, linear_attention_kernel_list(), {function}, problem);
}

void linear_attend_backward(Context& context, const View& q, const View& k, const View& v, const View& dout,
                            const LinearAttentionGradients& gradients, const LinearAttentionOptions& options,
                            const LinearState& initial, const LinearState& dfinal) {
    const LinearAttentionProblem problem = checked_linear_backward({"linear_attend_backward", context}, q, k, v, dout,
                                                                   gradients, options, initial, dfinal);
    run_backward(context, linear_attention_kernel_list(), {"linear_attend_backward"}, problem);
}

}  // namespace heed
