#pragma once
#include "kernel/kernel.h"
#include "kernel/row_sums_problem.h"

namespace heed::reference {

/// Is every number of x [B,S,r] finite?
bool all_finite(const View& x);

Kernel<SeenLatentsProblem> seen_latents_kernel();

}  // namespace heed::reference
