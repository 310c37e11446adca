#pragma once
#include "kernel/infini_attention_problem.h"
#include "ops/checks.h"

namespace heed {

struct InfiniInputs {
    View q, k, v, gates;
};

/// The edge: throws Error, naming `function` and the argument.
InfiniProblem checked_infini_forward(const Context& context, Caller function, const InfiniInputs& inputs,
                                     const MutableView& out, const InfiniMemory& memory, const InfiniOptions& options);
InfiniProblem checked_infini_backward(const Context& context, Caller function, const InfiniBackwardInputs& inputs,
                                      const InfiniGradients& gradients, const InfiniMemory& before,
                                      const InfiniOptions& options);

}  // namespace heed
