#pragma once
#include "kernel/kernel.h"
#include "kernel/positions_problem.h"

#include <vector>

namespace heed::reference {

/// Plain loops, double sums, forward beside backward. Each does one independent slice of the work, so that the
/// operation may share the slices out among threads without changing a bit.

/// Row t of `out` [T,d].
void sinusoid_row(const MutableView& out, std::int64_t t, std::int64_t position, const SinusoidOptions& options);

/// out[b,t] = table[row], or += with `add`.
void learned_row(const View& table, std::int64_t row, const MutableView& out, std::int64_t b, std::int64_t t, bool add);
/// dtable[row] = sum of dout over `tokens` (b * T + t), or += with `add`.
void learned_row_backward(const View& dout, const std::int64_t* tokens, std::int64_t count, const MutableView& dtable,
                          std::int64_t row, bool add);

/// bias[b,h,i,:] = table[bucket[:],h].
void relative_bias_row(const View& table, const MutableView& bias, std::int64_t b, std::int64_t h, std::int64_t i,
                       const std::int64_t* bucket);
/// sum[bucket[:]] += dbias[b,h,i,:].
void relative_bias_row_backward(const View& dbias, std::int64_t b, std::int64_t h, std::int64_t i,
                                const std::int64_t* bucket, double* sum);

/// The bucket of a distance key - query.
std::int64_t bucket_of(std::int64_t distance, const RelativeBuckets& buckets);

Kernel<SinusoidProblem> sinusoid_kernel();
Kernel<LearnedProblem> learned_kernel();
Kernel<RelativeBiasProblem> relative_bias_kernel();

}  // namespace heed::reference
