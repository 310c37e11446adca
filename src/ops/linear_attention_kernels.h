#pragma once
#include "kernel/kernel.h"
#include "kernel/linear_attention_problem.h"

#include <span>

namespace heed {

/// Best first, the reference last.
std::span<const Kernel<LinearAttentionProblem>> linear_attention_kernel_list();

}  // namespace heed
