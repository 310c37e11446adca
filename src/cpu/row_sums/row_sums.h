#pragma once
#include "kernel/kernel.h"
#include "kernel/row_sums_problem.h"

#include <vector>

namespace heed::cpu {

std::vector<Kernel<HeadSumProblem>> head_sum_kernels();
/// One for all instruction sets: memory is the limit.
Kernel<WeightedSumProblem> weighted_sum_kernel();
Kernel<HeadDotProblem> head_dot_kernel();

}  // namespace heed::cpu
