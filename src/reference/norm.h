#pragma once
#include "kernel/norm_problem.h"

namespace heed::reference {

/// Plain loops, double sums: the meaning of <heed/norm.h>.
void norm(const NormProblem& problem, std::int64_t begin, std::int64_t end);
/// dx of rows [begin, end).
void norm_backward(const NormProblem& problem, std::int64_t begin, std::int64_t end);
/// dweight and dbias, over all rows.
void norm_backward_weight(const NormProblem& problem);

}  // namespace heed::reference
