#pragma once
#include "base/pool.h"
#include "kernel/packed_problem.h"

namespace heed::cpu {

/// Takes the pool's lock itself.
void pack_weights(detail::Pool& pool, const PackWeightsProblem& problem);

}  // namespace heed::cpu
