#pragma once
#include "kernel/kernel.h"
#include "kernel/merge_problem.h"

#include <vector>

namespace heed::cpu {

std::vector<Kernel<MergeProblem>> merge_kernels();

}  // namespace heed::cpu
