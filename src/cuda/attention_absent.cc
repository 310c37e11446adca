/// heed built without CUDA: no rows.

#include "cuda/attention.h"

namespace heed::cuda {

std::vector<AttentionKernel> attention_kernels() { return {}; }

}  // namespace heed::cuda
