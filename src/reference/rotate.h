#pragma once
#include "kernel/kernel.h"
#include "kernel/rotate_problem.h"

namespace heed::reference {

/// Plain loops in double.
void rotate(const RotateProblem& problem);

inline Kernel<RotateProblem> rotate_kernel() {
    return reference_kernel<RotateProblem>([](detail::Place&, const RotateProblem& p) { rotate(p); });
}

}  // namespace heed::reference
