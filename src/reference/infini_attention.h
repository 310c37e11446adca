#pragma once
#include "kernel/infini_attention_problem.h"

namespace heed::reference {

/// Steps 1 to 4 of <heed/infini_attention.h> for one piece, in plain loops with double sums: the meaning of
/// Infini-attention in heed. M and z of `memory` are read, and moved on where the piece completes its segment.
void infini_piece(const InfiniProblem& problem, const InfiniPiece& piece, InfiniMemory& memory);

void infini_attend_backward(const InfiniProblem& problem, const View& dout, const InfiniGradients& gradients,
                            const InfiniMemory& before, const InfiniMemoryGradient& after);

}  // namespace heed::reference
