#pragma once
#include "kernel/cross_entropy_problem.h"

namespace heed::reference {

/// The meaning of <heed/cross_entropy.h>, rows [begin, end).
void cross_entropy(const CrossEntropyProblem& problem, std::int64_t begin, std::int64_t end);

}  // namespace heed::reference
