#pragma once
#include "kernel/kernel.h"
#include "kernel/matmul_problem.h"

#include <vector>

namespace heed::cpu {

/// oneDNN first, then heed's own tiles.
std::vector<Kernel<MatmulProblem>> matmul_kernels();

}  // namespace heed::cpu
