#pragma once
#include "kernel/attention_problem.h"
#include "kernel/kernel.h"

namespace heed {

/// Attention's rows know two things more.
struct AttentionKernel : Kernel<AttentionProblem> {
    /// out[r][j], r-th of the listed rows, j up to the entry's keys; row r starts at r * stride. One thread. Kernels
    /// that work in double have `wide_weights`, the others `weights`; a kernel without either does not look inside.
    void (*weights)(const AttentionProblem& problem, detail::Scratch& scratch, std::int64_t b, std::int64_t h,
                    const std::int64_t* rows, std::int64_t count, std::int64_t stride, float* out) = nullptr;
    void (*wide_weights)(const AttentionProblem& problem, std::int64_t b, std::int64_t h, const std::int64_t* rows,
                         std::int64_t count, std::int64_t stride, double* out) = nullptr;

    /// AttentionProblem::pages; the others get tensors.
    bool reads_pages = false;
};

}  // namespace heed
