#pragma once
#include "kernel/rope_problem.h"

namespace heed::reference {

/// Plain loops in double: the meaning of RoPE in heed.
void rope(const RopeProblem& problem);

}  // namespace heed::reference
