#include <heed/attention.h>

#include "ops/attention_checks.h"
#include "ops/attention_kernels.h"

#include <limits>

namespace heed {
namespace {

/// Packed batches may end before the tensors do: the rows behind the last sequence are 0, as for any row
/// past its length.
void clear_behind(const AttentionProblem& problem, const MutableView& view, const View& cumulative, double value) {
    if (!problem.packed || !view) { return; }
    const std::int64_t begin =
        read_integer(cumulative.dtype(), cumulative.data(), problem.batch * cumulative.stride(0));
    const std::int64_t columns = view.rank() == 4 ? view.extent(3) : 1;
    for (std::int64_t h = 0; h < view.extent(1); ++h) {
        for (std::int64_t t = begin; t < view.extent(2); ++t) {
            for (std::int64_t c = 0; c < columns; ++c) {
                const std::int64_t column = view.rank() == 4 ? c * view.stride(3) : 0;
                write_number(view.dtype(), view.data(), h * view.stride(1) + t * view.stride(2) + column, value);
            }
        }
    }
}

}  // namespace

void attend(Context& context, const View& q, const View& k, const View& v, const MutableView& out,
            const AttentionOptions& options, const MutableView& lse) {
    const AttentionProblem problem = checked_forward("attend", q, k, v, out, options, lse);
    const AttentionKernel& kernel = choose_attention_kernel("attend", problem);
    const auto lock = context.pool().lock();
    clear_behind(problem, out, options.cu_seqlens_q, 0);
    clear_behind(problem, lse, options.cu_seqlens_q, -std::numeric_limits<double>::infinity());
    kernel.forward(context.pool(), problem);
}

void attend_backward(Context& context, const View& q, const View& k, const View& v, const View& out, const View& lse,
                     const View& dout, const AttentionGradients& gradients, const AttentionOptions& options,
                     const View& dlse) {
    const AttentionProblem problem =
        checked_backward("attend_backward", q, k, v, out, lse, dout, gradients, options, dlse);
    const AttentionKernel& kernel = choose_attention_kernel("attend_backward", problem);
    const auto lock = context.pool().lock();
    clear_behind(problem, gradients.dq, options.cu_seqlens_q, 0);
    clear_behind(problem, gradients.dk, options.cu_seqlens_k, 0);
    clear_behind(problem, gradients.dv, options.cu_seqlens_k, 0);
    kernel.backward(context.pool(), problem);
}

Explanation explain(const AttentionShape& shape, const AttentionOptions& options) {
    const AttentionProblem problem = checked_shape("explain", shape, options);
    Explanation explanation;
    explanation.kernel = choose_attention_kernel("explain", problem).name;
    bool chosen_seen = false;
    for (const AttentionKernel& kernel : attention_kernel_list()) {
        KernelVerdict verdict{.kernel = kernel.name, .fits = false, .reason = kernel.declines(problem)};
        if (verdict.reason.empty()) {
            verdict.fits = true;
            const bool chosen = verdict.kernel == explanation.kernel;
            verdict.reason = chosen        ? "runs: " + kernel.what
                             : chosen_seen ? "fits, but " + explanation.kernel + " comes first"
                                           : "fits, but " + explanation.kernel + " was asked for";
            chosen_seen = chosen_seen || chosen;
        }
        explanation.verdicts.push_back(std::move(verdict));
    }
    return explanation;
}

std::vector<std::string> attention_kernels() {
    std::vector<std::string> names;
    for (const AttentionKernel& kernel : attention_kernel_list()) { names.emplace_back(kernel.name); }
    return names;
}

}  // namespace heed
