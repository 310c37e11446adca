/// heed built without CUDA: no rows.

#include "cuda/linear_attention.h"

namespace heed::cuda {

std::vector<Kernel<LinearAttentionProblem>> linear_attention_kernels() { return {}; }

}  // namespace heed::cuda
