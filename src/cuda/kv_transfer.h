#pragma once
#include "kernel/kernel.h"
#include "kernel/kv_transfer_problem.h"

#include <vector>

namespace heed::cuda {

/// Rows of caches on the GPU; none where heed is built without CUDA.
std::vector<Kernel<KvWriteProblem>> kv_write_kernels();
std::vector<Kernel<KvGatherProblem>> kv_gather_kernels();

}  // namespace heed::cuda
