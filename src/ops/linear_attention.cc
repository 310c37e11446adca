#include <heed/linear_attention.h>

#include "cpu/instruction_sets.h"
#include "ops/checks.h"
#include "ops/linear_attention_checks.h"
#include "ops/linear_attention_kernels.h"
#include "reference/linear_attention.h"

#include <cstdlib>
#include <string_view>
#include <vector>

namespace heed {
namespace {

constexpr std::int64_t reference_chunk = 64;

/// The fast kernels compute in float32.
bool needs_reference(const LinearAttentionProblem& p) {
    const char* forced = std::getenv("HEED_KERNEL");
    if (p.options.form == LinearForm::quadratic || (forced != nullptr && std::string_view(forced) == "reference")) {
        return true;
    }
    const auto wide = [](const View& view) { return view && view.dtype() == DType::f64; };
    return wide(p.q) || wide(p.k) || wide(p.v);
}

std::int64_t chunk_of(const LinearAttentionProblem& p) {
    switch (p.options.form) {
        case LinearForm::recurrent: return 1;
        case LinearForm::quadratic: return std::max<std::int64_t>(1, p.keys);
        default: return p.options.chunk > 0 ? p.options.chunk : reference_chunk;
    }
}

View with_length_one(const char* function, const char* name, const View& view) {
    if (view.rank() != 3) {
        refuse(function, name, "3 axes [batch, heads, size]", view ? to_string(view.shape()) : "none");
    }
    return View(view.dtype(), view.data(), Shape{view.extent(0), view.extent(1), 1, view.extent(2)},
                Shape{view.stride(0), view.stride(1), 0, view.stride(2)});
}

}  // namespace

void run_linear_forward(detail::Pool& pool, const LinearAttentionProblem& problem) {
    if (needs_reference(problem)) {
        reference::linear_attend(problem, chunk_of(problem));
    } else {
        cpu::instruction_set().kernels->linear_attention.forward(pool, problem);
    }
}

void run_linear_backward(detail::Pool& pool, const LinearAttentionProblem& problem) {
    if (needs_reference(problem)) {
        reference::linear_attend_backward(problem, chunk_of(problem));
        return;
    }
    const auto kernel = cpu::instruction_set().kernels->linear_attention.backward;
    const MutableView& ddecay = problem.gradients.ddecay;
    if (!ddecay) {
        kernel(pool, problem);
        return;
    }
    std::vector<double> parts(static_cast<std::size_t>(problem.batch * problem.states));
    LinearAttentionProblem with_parts = problem;
    with_parts.ddecay_parts = parts.data();
    kernel(pool, with_parts);
    for (std::int64_t n = 0; n < problem.states; ++n) {
        double sum = 0;
        for (std::int64_t b = 0; b < problem.batch; ++b) {
            sum += parts[static_cast<std::size_t>(b * problem.states + n)];
        }
        write_number(ddecay.dtype(), ddecay.data(), n * ddecay.stride(0), sum);
    }
}

std::int64_t linear_states(const LinearAttentionOptions& options, std::int64_t kv_heads) {
    return options.decay && options.decay.rank() == 1 ? options.decay.extent(0) : kv_heads;
}

void linear_attend(Context& context, const View& q, const View& k, const View& v, const MutableView& out,
                   const LinearAttentionOptions& options, const LinearState& initial, const MutableLinearState& final) {
    const LinearAttentionProblem problem =
        checked_linear_forward("linear_attend", q, k, v, out, options, initial, final);
    const auto lock = context.pool().lock();
    run_linear_forward(context.pool(), problem);
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
                           Shape{out.stride(0), out.stride(1), 0, out.stride(2)});
    const LinearAttentionProblem problem =
        checked_linear_forward(function, with_length_one(function, "q", q), with_length_one(function, "k", k),
                               with_length_one(function, "v", v), out4, step, state, state);
    const auto lock = context.pool().lock();
    run_linear_forward(context.pool(), problem);
}

void linear_attend_backward(Context& context, const View& q, const View& k, const View& v, const View& dout,
                            const LinearAttentionGradients& gradients, const LinearAttentionOptions& options,
                            const LinearState& initial, const LinearState& dfinal) {
    const LinearAttentionProblem problem =
        checked_linear_backward("linear_attend_backward", q, k, v, dout, gradients, options, initial, dfinal);
    const auto lock = context.pool().lock();
    run_linear_backward(context.pool(), problem);
}

}  // namespace heed
