#pragma once
#include "kernel/kernel.h"
#include "kernel/rope_problem.h"

namespace heed::reference {

/// Plain loops in double: the meaning of RoPE in heed.
void rope(const RopeProblem& problem);

inline Kernel<RopeProblem> rope_kernel() {
    return reference_kernel<RopeProblem>([](detail::Place&, const RopeProblem& p) { rope(p); });
}

}  // namespace heed::reference
