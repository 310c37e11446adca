#pragma once
#include "kernel/dropout_problem.h"

namespace heed::reference {

/// The meaning of <heed/dropout.h>, rows [begin, end).
void dropout(const DropoutProblem& problem, std::int64_t begin, std::int64_t end);

}  // namespace heed::reference
