/// heed built without CUDA: no rows.

#include "cuda/kv_transfer.h"

namespace heed::cuda {

std::vector<Kernel<KvWriteProblem>> kv_write_kernels() { return {}; }
std::vector<Kernel<KvGatherProblem>> kv_gather_kernels() { return {}; }

}  // namespace heed::cuda
