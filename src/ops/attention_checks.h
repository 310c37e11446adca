#pragma once
#include "kernel/attention_problem.h"
#include "ops/checks.h"

namespace heed {

/// The edge: throws Error, naming `function` and the argument, or returns a problem that kernels can trust.
/// The views it lacks for other functions (v, out, lse, gradients) are left absent.
AttentionProblem checked_scores(Caller function, const View& q, const View& k, const AttentionOptions& options);
AttentionProblem checked_forward(Caller function, const View& q, const View& k, const View& v,
                                 const AttentionOutputs& outputs, const AttentionOptions& options);
AttentionProblem checked_backward(Caller function, const AttentionBackwardInputs& inputs,
                                  const AttentionGradients& gradients, const AttentionOptions& options);

/// Keys and values that lie in pages: k and v are absent, the options are packed, `keys` is the sum of their lengths.
AttentionProblem checked_cached(Caller function, const View& q, const AttentionShape& sizes,
                                const AttentionOutputs& outputs, const AttentionOptions& options);

/// Shapes and options alone, with no tensor behind them.
AttentionProblem checked_shape(Caller function, const AttentionShape& shape, const AttentionOptions& options);

}  // namespace heed
