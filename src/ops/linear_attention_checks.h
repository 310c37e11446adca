#pragma once
#include "kernel/linear_attention_problem.h"
#include "ops/checks.h"

namespace heed {

/// The edge: throws Error, naming `function` and the argument, or returns a problem that kernels can trust.
LinearAttentionProblem checked_linear_forward(Caller function, const View& q, const View& k, const View& v,
                                              const MutableView& out, const LinearAttentionOptions& options,
                                              const LinearState& initial, const MutableLinearState& final);
LinearAttentionProblem checked_linear_backward(Caller function, const View& q, const View& k, const View& v,
                                               const View& dout, const LinearAttentionGradients& gradients,
                                               const LinearAttentionOptions& options, const LinearState& initial,
                                               const LinearState& dfinal);

}  // namespace heed
