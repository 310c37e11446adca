#pragma once
#include "kernel/infini_attention_problem.h"
#include "ops/checks.h"

namespace heed {

/// The edge: throws Error, naming `function` and the argument.
InfiniProblem checked_infini_forward(const Context& context, Caller function, const View& q, const View& k,
                                     const View& v, const View& gates, const MutableView& out,
                                     const InfiniMemory& memory, const InfiniOptions& options);
InfiniProblem checked_infini_backward(const Context& context, Caller function, const View& q, const View& k,
                                      const View& v, const View& gates, const View& dout,
                                      const InfiniGradients& gradients, const InfiniMemory& before,
                                      const InfiniOptions& options, const InfiniMemoryGradient& after);

}  // namespace heed
