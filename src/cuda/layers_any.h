#pragma once
/// Launches of layers_any.cu, on a stream (a cudaStream_t). `wide`: numbers are computed in double, else in float.

#include "cuda/attention_call.h"
#include "kernel/activation_problem.h"
#include "kernel/dropout_problem.h"
#include "kernel/elementwise_problem.h"
#include "kernel/linear_problem.h"
#include "kernel/norm_problem.h"

namespace heed::cuda {

void launch_norm(void* stream, const NormProblem& problem, bool wide);
/// Parts that sums over so many rows are made of.
std::int64_t parts_of_rows(std::int64_t rows);
/// Mean and 1 / deviation of every row go to `memory`, of 2 numbers a row, and of 2 a column and part behind them.
void launch_norm_backward(void* stream, const NormProblem& problem, void* memory, bool wide);
void launch_activation(void* stream, const ActivationProblem& problem, bool wide);
void launch_activation_backward(void* stream, const ActivationProblem& problem, bool wide);
void launch_elementwise(void* stream, const ElementwiseProblem& problem, bool wide);
/// `memory`: a number for every part and number of the result; null where there are few repeats.
void launch_sum_leading(void* stream, const SumProblem& problem, void* memory, bool wide);
/// Also products with outer and summed axes, without bias and activation.
void launch_linear(void* stream, const LinearProblem& problem, bool wide);
void launch_dropout(void* stream, const DropoutProblem& problem, bool wide);

/// Rows of a table by ids on the device.
struct EmbeddingCall {
    const std::int64_t* ids = nullptr;
    std::int64_t rows = 0, columns = 0;
    double scale = 1;
    TensorRows table, out;
};
void launch_embedding(void* stream, const EmbeddingCall& call, bool wide);

/// A rotation: frequencies and positions on the device.
struct RopeCall {
    Tensor4 x, out;
    std::int64_t batch = 0, heads = 0, length = 0, size = 0, pairs = 0, first = 0;
    const double* frequencies = nullptr;
    const std::int64_t* positions = nullptr;  ///< null: first and up
    std::int64_t positions_stride = 0;        ///< of a batch entry; 0: the same for all
    double factor = 1;
    bool interleaved = false;
};
void launch_rope(void* stream, const RopeCall& call, bool wide);

}  // namespace heed::cuda
