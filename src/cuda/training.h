#pragma once
#include "kernel/adam_problem.h"
#include "kernel/cross_entropy_problem.h"
#include "kernel/embedding_problem.h"
#include "kernel/kernel.h"

#include <vector>

namespace heed::cuda {

/// The rows of the GPU for what training needs beside the layers; none where heed is built without CUDA. Losses and
/// norms come back to the host, so that these calls wait.
std::vector<Kernel<CrossEntropyProblem>> cross_entropy_kernels();
std::vector<Kernel<AdamStep>> adam_kernels();
std::vector<Kernel<SquaresProblem>> squares_kernels();

/// The way back of the embedding's row (layers.cc).
void embedding_backward(detail::Place& place, const EmbeddingProblem& problem);

}  // namespace heed::cuda
