#pragma once
#include "cpu/instruction_sets.h"

namespace heed::cpu {

/// Empty where the tiled kernels can take the problem on a CPU that has their instruction set; otherwise why not.
std::string declines(const AttentionProblem& problem);

}  // namespace heed::cpu
