#pragma once
#include "kernel/elementwise_problem.h"

namespace heed::reference {

/// The meaning of <heed/elementwise.h>, rows [begin, end).
void elementwise(const ElementwiseProblem& problem, std::int64_t begin, std::int64_t end);
void sum_leading(const SumProblem& problem, std::int64_t begin, std::int64_t end);
/// The sum of one row.
double sum(const TensorRows& x, std::int64_t row, std::int64_t columns);
/// Of elements [begin, end) of the first row.
double sum_of_squares(const TensorRows& x, std::int64_t begin, std::int64_t end);

}  // namespace heed::reference
