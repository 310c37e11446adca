#pragma once
#include "kernel/kernel.h"
#include "kernel/linear_attention_problem.h"

#include <vector>

namespace heed::cuda {

/// Linear attention on the GPU; no rows where heed is built without CUDA.
std::vector<Kernel<LinearAttentionProblem>> linear_attention_kernels();

}  // namespace heed::cuda
