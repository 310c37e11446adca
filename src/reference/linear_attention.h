#pragma once
#include "kernel/kernel.h"
#include "kernel/linear_attention_problem.h"

namespace heed::reference {

/// Plain loops, double sums: the meaning of <heed/linear_attention.h>. `chunk` tokens at a time are one T x T
/// matrix, with the state between them: 1 is the recurrence, T or more the whole matrix.
void linear_attend(const LinearAttentionProblem& problem, std::int64_t chunk);
void linear_attend_backward(const LinearAttentionProblem& problem, std::int64_t chunk);

/// The same with a decay per token or the delta rule: the recurrence, a token at a time.
void gated_linear_attend(const LinearAttentionProblem& problem);
void gated_linear_attend_backward(const LinearAttentionProblem& problem);
/// The matrix of all tokens.
void gated_linear_attend_quadratic(const LinearAttentionProblem& problem);

Kernel<LinearAttentionProblem> linear_attention_kernel();

}  // namespace heed::reference
