#pragma once
#include "kernel/attention_kernel.h"

#include <vector>

namespace heed::cuda {

/// The rows of the GPU, best first; none where heed is built without CUDA.
std::vector<AttentionKernel> attention_kernels();

}  // namespace heed::cuda
