#include <heed/attention.h>

#include "ops/attention_checks.h"
#include "ops/attention_kernels.h"

namespace heed {
void attend(Context& context, const View& q, const View& k, const View& v, const AttentionOutputs& outputs,
            const AttentionOptions& options) {
    const AttentionProblem problem = checked_forward({"attend", context}, q, k, v, outputs, options);
    run_forward(context, attention_kernel_list(), {"attend", options.kernel}, problem);
}

void attend_backward(Context& context, const AttentionBackwardInputs& inputs, const AttentionGradients& gradients,
                     const AttentionOptions& options) {
    const AttentionProblem problem = checked_backward({"attend_backward", context}, inputs, gradients, options);
    run_backward(context, attention_kernel_list(), {"attend_backward", options.kernel}, problem);
}

Explanation explain(const AttentionShape& shape, const AttentionOptions& options) {
    const AttentionProblem problem = checked_shape("explain", shape, options);
    const detail::EnvironmentPlace place;
    return explain_kernels(attention_kernel_list(), place, {"explain", options.kernel}, problem);
}

std::vector<std::string> attention_kernels() { return names_of(attention_kernel_list()); }

}  // namespace heed
