#pragma once
/// Matrix products by NVIDIA's cuBLASLt, found at run time: heed neither needs it to be built nor to start.

#include "kernel/linear_problem.h"

#include <memory>

namespace heed::cuda {

class CudaQueue;

/// Is the library on this machine?
bool cublas_lt_found();

/// Handles and choices of one queue.
class CublasLt {
public:
    virtual ~CublasLt() = default;
    /// c = alpha a b + beta c (+ bias) of what cublas_lt_declines takes. False where the library has nothing for it.
    virtual bool multiply(CudaQueue& queue, const LinearProblem& problem) = 0;
};
std::unique_ptr<CublasLt> make_cublas_lt();

/// Why the library cannot multiply these; null where it can.
const char* cublas_lt_declines(const LinearProblem& problem);

}  // namespace heed::cuda
