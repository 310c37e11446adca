#pragma once
#include "base/pool.h"
#include "kernel/linear_attention_problem.h"

namespace heed {

/// Runs a checked problem on the kernel that suits it. The pool's lock is held by the caller.
void run_linear_forward(detail::Pool& pool, const LinearAttentionProblem& problem);
void run_linear_backward(detail::Pool& pool, const LinearAttentionProblem& problem);

}  // namespace heed
