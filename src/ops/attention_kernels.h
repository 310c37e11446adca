#pragma once
#include "kernel/attention_kernel.h"

#include <span>

namespace heed {

/// Best first, the reference last.
std::span<const AttentionKernel> attention_kernel_list();

/// choose() for attention: the option in the problem, then what the context says, then the best that fits.
const AttentionKernel& choose_attention_kernel(const Context& context, const char* function,
                                               const AttentionProblem& problem, Pass pass = Pass::forward);

}  // namespace heed
