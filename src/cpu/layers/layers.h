#pragma once
#include "base/pool.h"
#include "cpu/layers/tables.h"
#include "kernel/embedding_problem.h"

/// Operations on rows, handed to threads in pieces whose sizes depend on the shapes alone.

namespace heed::cpu {

void norm(detail::Pool& pool, const LayerKernels& kernels, const NormProblem& problem);
void norm_backward(detail::Pool& pool, const LayerKernels& kernels, const NormProblem& problem);
void activation(detail::Pool& pool, const LayerKernels& kernels, const ActivationProblem& problem);
void activation_backward(detail::Pool& pool, const LayerKernels& kernels, const ActivationProblem& problem);
void elementwise(detail::Pool& pool, const LayerKernels& kernels, const ElementwiseProblem& problem);
void sum_leading(detail::Pool& pool, const LayerKernels& kernels, const SumProblem& problem);
void cross_entropy(detail::Pool& pool, const LayerKernels& kernels, const CrossEntropyProblem& problem);
void dropout(detail::Pool& pool, const LayerKernels& kernels, const DropoutProblem& problem);
void embedding(detail::Pool& pool, const LayerKernels& kernels, const EmbeddingProblem& problem);
void embedding_backward(detail::Pool& pool, const LayerKernels& kernels, const EmbeddingProblem& problem);

}  // namespace heed::cpu
