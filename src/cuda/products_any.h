#pragma once
/// Launches of products_any.cu, on a stream (a cudaStream_t).

#include "kernel/linear_problem.h"

namespace heed::cuda {

constexpr std::int64_t few_rows = 8;

/// A product of at most few_rows rows with a matrix whose columns lie one behind the other, as decoding has them: of
/// any float types but f64.
void launch_few_rows(void* stream, const LinearProblem& problem);

}  // namespace heed::cuda
