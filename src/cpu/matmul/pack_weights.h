#pragma once
#include "kernel/kernel.h"
#include "kernel/packed_problem.h"

#include <vector>

namespace heed::cpu {

/// Rows of the list of packing.
std::vector<Kernel<PackWeightsProblem>> pack_weights_kernels();

}  // namespace heed::cpu
