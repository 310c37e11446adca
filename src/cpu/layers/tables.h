#pragma once
#include "cpu/isa/tables.h"
#include "kernel/activation_problem.h"
#include "kernel/adam_problem.h"
#include "kernel/cross_entropy_problem.h"
#include "kernel/dropout_problem.h"
#include "kernel/elementwise_problem.h"
#include "kernel/norm_problem.h"

namespace heed::cpu {

/// What the files isa/layers_*.cc export: pieces of work on rows, for whoever hands them to threads. Begin and end are
/// rows where nothing else is said.
struct LayerKernels {
    /// scratch: 4 * columns floats
    void (*norm)(const NormProblem& problem, std::int64_t begin, std::int64_t end, float* scratch);
    /// scratch: 4 * columns floats. dweight and dbias, where given, are set to these rows' share.
    void (*norm_backward)(const NormProblem& problem, std::int64_t begin, std::int64_t end, float* scratch,
                          float* dweight, float* dbias);
    void (*activation)(const ActivationProblem& problem, std::int64_t begin, std::int64_t end);
    void (*activation_backward)(const ActivationProblem& problem, std::int64_t begin, std::int64_t end);
    /// Columns [begin, end) of one row.
    void (*elementwise)(const ElementwiseProblem& problem, std::int64_t row, std::int64_t begin, std::int64_t end);
    void (*sum_leading)(const SumProblem& problem, std::int64_t row, std::int64_t begin, std::int64_t end);
    /// Elements of one line of numbers.
    double (*sum_of_squares)(const Numbers& x, std::int64_t begin, std::int64_t end);
    void (*adam)(const AdamProblem& problem, std::int64_t begin, std::int64_t end);
    void (*cross_entropy)(const CrossEntropyProblem& problem, std::int64_t begin, std::int64_t end);
    void (*dropout)(const DropoutProblem& problem, std::int64_t begin, std::int64_t end);
};

extern const LayerKernels portable_layers;
extern const LayerKernels avx2_layers;
extern const LayerKernels avx512_layers;
extern const LayerKernels neon_layers;

/// Those that belong to the other kernels of an instruction set.
const LayerKernels& layers_of(const Kernels& kernels);

}  // namespace heed::cpu
