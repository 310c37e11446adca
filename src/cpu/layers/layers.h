#pragma once
#include "base/pool.h"
#include "cpu/layers/tables.h"
#include "kernel/embedding_problem.h"
#include "kernel/kernel.h"

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

/// Rows of the operations' lists, one for each instruction set.
std::vector<Kernel<NormProblem>> norm_kernels();
std::vector<Kernel<ActivationProblem>> activation_kernels();
std::vector<Kernel<ElementwiseProblem>> elementwise_kernels();
std::vector<Kernel<SumProblem>> sum_leading_kernels();
std::vector<Kernel<CrossEntropyProblem>> cross_entropy_kernels();
std::vector<Kernel<DropoutProblem>> dropout_kernels();
std::vector<Kernel<EmbeddingProblem>> embedding_kernels();
std::vector<Kernel<AdamStep>> adam_kernels();
std::vector<Kernel<SquaresProblem>> squares_kernels();

}  // namespace heed::cpu
