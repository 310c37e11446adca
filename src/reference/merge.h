#pragma once
#include "kernel/kernel.h"
#include "kernel/merge_problem.h"

namespace heed::reference {

/// Plain loops, double sums: the meaning of <heed/merge.h>. Rows [begin, end).
void merge(const MergeProblem& problem, std::int64_t begin, std::int64_t end);
void merge_backward(const MergeProblem& problem, std::int64_t begin, std::int64_t end);

Kernel<MergeProblem> merge_kernel();

}  // namespace heed::reference
