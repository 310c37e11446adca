#pragma once
#include "kernel/linear_attention_problem.h"
#include "ops/checks.h"

namespace heed {

struct LinearAttentionInputs {
    View q, k, v;
    LinearState initial;
};

/// The edge: throws Error, naming `function` and the argument, or returns a problem that kernels can trust.
LinearAttentionProblem checked_linear_forward(Caller function, const LinearAttentionInputs& inputs,
                                              const LinearAttentionOutputs& outputs,
                                              const LinearAttentionOptions& options);
LinearAttentionProblem checked_linear_backward(Caller function, const LinearAttentionBackwardInputs& inputs,
                                               const LinearAttentionGradients& gradients,
                                               const LinearAttentionOptions& options);

}  // namespace heed
