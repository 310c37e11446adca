#pragma once
/// Launches of training_any.cu, on a stream (a cudaStream_t). `wide`: numbers are computed in double, else in float.

#include "kernel/adam_problem.h"
#include "kernel/tensor_rows.h"

namespace heed::cuda {

/// dtable by places that are sorted by id: those of listed id n are places[starts[n]] up to places[starts[n + 1]].
struct EmbeddingBackwardCall {
    const std::int64_t* ids = nullptr;  ///< those that occur, each once
    const std::int64_t* starts = nullptr;
    const std::int64_t* places = nullptr;
    std::int64_t listed = 0, columns = 0, classes = 0;
    double scale = 1;
    bool accumulate = false;
    TensorRows dout, dtable;
};
void launch_embedding_backward(void* stream, const EmbeddingBackwardCall& call, bool wide);

/// Rows of logits; targets, losses and nlls on the device.
struct CrossEntropyCall {
    RowsShape shape;
    const std::int64_t* targets = nullptr;
    double *losses = nullptr, *nlls = nullptr;
    std::int64_t ignore = -100;
    double base = 0, target = 1, gradient = 1, softcap = 0;
    TensorRows logits, dlogits;
};
void launch_cross_entropy(void* stream, const CrossEntropyCall& call, bool wide);

void launch_adam(void* stream, const AdamProblem& problem, bool wide);

/// sums[piece] of one tensor, on the device.
void launch_squares(void* stream, const SquaresProblem::Tensor& tensor, double* sums);

}  // namespace heed::cuda
