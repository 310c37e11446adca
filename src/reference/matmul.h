#pragma once
#include "kernel/kernel.h"
#include "kernel/matmul_problem.h"

namespace heed::reference {

/// Plain loops, double sums: the meaning of <heed/matmul.h>, and what computes f64. Row m of entry n of the outer axes.
void matmul_row(const MatmulProblem& problem, std::int64_t n, std::int64_t m);

Kernel<MatmulProblem> matmul_kernel();

}  // namespace heed::reference
