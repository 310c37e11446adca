#include <heed/attention.h>

#include "ops/attention_checks.h"
#include "ops/attention_kernels.h"

namespace heed {
void attend(Context& context, const View& q, const View& k, const View& v, const MutableView& out,
            const AttentionOptions& options, const MutableView& lse) {
    const AttentionProblem problem = checked_forward({"attend", context}, q, k, v, out, options, lse);
    run_forward(context, attention_kernel_list(), {"attend", options.kernel}, problem);
}

void attend_backward(Context& context, const View& q, const View& k, const View& v, const View& out, const View& lse,
                     const View& dout, const AttentionGradients& gradients, const AttentionOptions& options,
                     const View& dlse) {
    const AttentionProblem problem =
        checked_backward({"attend_backward", context}, q, k, v, out, lse, dout, gradients, options, dlse);
    run_backward(context, attention_kernel_list(), {"attend_backward", options.kernel}, problem);
}

Explanation explain(const AttentionShape& shape, const AttentionOptions& options) {
    const AttentionProblem problem = checked_shape("explain", shape, options);
    const detail::EnvironmentPlace place;
    return explain_kernels(attention_kernel_list(), place, {"explain", options.kernel}, problem);
}

std::vector<std::string> attention_kernels() { return names_of(attention_kernel_list()); }

}  // namespace heed
