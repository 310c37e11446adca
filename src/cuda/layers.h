#pragma once
#include "kernel/activation_problem.h"
#include "kernel/dropout_problem.h"
#include "kernel/elementwise_problem.h"
#include "kernel/embedding_problem.h"
#include "kernel/kernel.h"
#include "kernel/linear_problem.h"
#include "kernel/norm_problem.h"
#include "kernel/rope_problem.h"

#include <vector>

namespace heed::cuda {

/// The rows of the GPU for the layers' operations; none where heed is built without CUDA.
std::vector<Kernel<NormProblem>> norm_kernels();
std::vector<Kernel<ActivationProblem>> activation_kernels();
std::vector<Kernel<ElementwiseProblem>> elementwise_kernels();
std::vector<Kernel<SumProblem>> sum_leading_kernels();
std::vector<Kernel<EmbeddingProblem>> embedding_kernels();
std::vector<Kernel<LinearProblem>> linear_kernels();
std::vector<Kernel<MatmulProblem>> matmul_kernels();
std::vector<Kernel<DropoutProblem>> dropout_kernels();
std::vector<Kernel<RopeProblem>> rope_kernels();

}  // namespace heed::cuda
