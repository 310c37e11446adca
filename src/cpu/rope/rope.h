#pragma once
#include "kernel/kernel.h"
#include "kernel/rope_problem.h"

#include <vector>

namespace heed::cpu {

std::vector<Kernel<RopeProblem>> rope_kernels();

}  // namespace heed::cpu
