#pragma once
#include "kernel/adam_problem.h"

namespace heed::reference {

/// The meaning of <heed/optimizer.h>, elements [begin, end).
void adam(const AdamProblem& problem, std::int64_t begin, std::int64_t end);

}  // namespace heed::reference
