/// heed built without CUDA: no rows.

#include "cuda/layers.h"

namespace heed::cuda {

std::vector<Kernel<NormProblem>> norm_kernels() { return {}; }
std::vector<Kernel<ActivationProblem>> activation_kernels() { return {}; }
std::vector<Kernel<ElementwiseProblem>> elementwise_kernels() { return {}; }
std::vector<Kernel<SumProblem>> sum_leading_kernels() { return {}; }
std::vector<Kernel<EmbeddingProblem>> embedding_kernels() { return {}; }
std::vector<Kernel<LinearProblem>> linear_kernels() { return {}; }
std::vector<Kernel<MatmulProblem>> matmul_kernels() { return {}; }
std::vector<Kernel<DropoutProblem>> dropout_kernels() { return {}; }
std::vector<Kernel<RopeProblem>> rope_kernels() { return {}; }

}  // namespace heed::cuda
