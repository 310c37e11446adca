#pragma once
#include "base/pool.h"
#include "kernel/attention_problem.h"

#include <span>
#include <string>

namespace heed {

/// The seam: what a kernel is to the rest of heed. A new one is a row in attention_kernels.cc.
struct AttentionKernel {
    std::string name;
    std::string what;     ///< for explain()
    std::string missing;  ///< what this machine lacks to run it; empty: nothing
    /// Empty where the kernel can take the problem; otherwise why not.
    std::string (*declines_problem)(const AttentionProblem& problem);
    void (*forward)(detail::Pool& pool, const AttentionProblem& problem);
    void (*backward)(detail::Pool& pool, const AttentionProblem& problem);
    /// out[r][j], r-th of the listed rows, j up to the entry's keys; row r starts at r * stride. One thread. Kernels
    /// that work in double have `wide_weights`, the others `weights`.
    void (*weights)(const AttentionProblem& problem, detail::Scratch& scratch, std::int64_t b, std::int64_t h,
                    const std::int64_t* rows, std::int64_t count, std::int64_t stride, float* out) = nullptr;
    void (*wide_weights)(const AttentionProblem& problem, std::int64_t b, std::int64_t h, const std::int64_t* rows,
                         std::int64_t count, std::int64_t stride, double* out) = nullptr;

    /// AttentionProblem::pages; the others get tensors.
    bool reads_pages = false;

    std::string declines(const AttentionProblem& problem) const {
        return missing.empty() ? declines_problem(problem) : missing;
    }
};

/// Best first, the reference last.
std::span<const AttentionKernel> attention_kernel_list();

/// The first that fits, or the one that is forced (option, then HEED_KERNEL). Throws Error, naming
/// `function`, where a forced one is unknown or does not fit.
const AttentionKernel& choose_attention_kernel(const char* function, const AttentionProblem& problem);

}  // namespace heed
