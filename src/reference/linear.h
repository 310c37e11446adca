#pragma once
#include "kernel/linear_problem.h"

namespace heed::reference {

/// Plain loops, double sums: the meaning of <heed/linear.h>, rows [begin, end) of c.
void linear(const LinearProblem& problem, std::int64_t begin, std::int64_t end);

}  // namespace heed::reference
