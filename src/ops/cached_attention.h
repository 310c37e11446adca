#pragma once
/// Attention over keys and values that lie in pages.

#include <heed/context.h>
#include <heed/tensor.h>

#include "kernel/attention_problem.h"
#include "ops/attention_kernels.h"

namespace heed {

/// problem.pages says where the keys are; the entries are packed. The kernel, which was chosen for the problem, reads
/// the pages themselves, except the reference, which gets a copy widened to tensors.
void attend_pages(Context& context, const AttentionKernel& kernel, const AttentionProblem& problem);

/// to [B,H,T,E] = from, rounded to its type; any strides.
void copy_rows(const View& from, const MutableView& to);

/// Like attend, where q is of another type than k and v: results are those of the wider type.
void attend_mixed(Context& context, const View& q, const View& k, const View& v, const AttentionOutputs& outputs,
                  const AttentionOptions& options);

}  // namespace heed
