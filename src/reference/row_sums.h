#pragma once
#include "kernel/kernel.h"
#include "kernel/row_sums_problem.h"

namespace heed::reference {

Kernel<HeadSumProblem> head_sum_kernel();

}  // namespace heed::reference
