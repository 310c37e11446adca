#pragma once
#include "kernel/clamped_gate_problem.h"

namespace heed::reference {

/// Rows begin up to end.
void clamped_gate(const ClampedGateProblem& p, std::int64_t begin, std::int64_t end);
void clamped_gate_backward(const ClampedGateProblem& p, std::int64_t begin, std::int64_t end);

}  // namespace heed::reference
