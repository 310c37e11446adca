#pragma once
#include "base/pool.h"
#include "kernel/rope_problem.h"

namespace heed::cpu {

/// f32, bf16 and f16, any strides.
void rope(detail::Pool& pool, const RopeProblem& problem);

}  // namespace heed::cpu
