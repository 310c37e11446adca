#pragma once
#include "kernel/kernel.h"
#include "kernel/linear_attention_problem.h"

#include <vector>

namespace heed::cpu {

std::vector<Kernel<LinearAttentionProblem>> linear_attention_kernels();

}  // namespace heed::cpu
