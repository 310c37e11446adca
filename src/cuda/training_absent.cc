/// heed built without CUDA: no rows.

#include "cuda/training.h"

namespace heed::cuda {

std::vector<Kernel<CrossEntropyProblem>> cross_entropy_kernels() { return {}; }
std::vector<Kernel<AdamStep>> adam_kernels() { return {}; }
std::vector<Kernel<SquaresProblem>> squares_kernels() { return {}; }

}  // namespace heed::cuda
