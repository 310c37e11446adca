#pragma once
#include "kernel/attention_kernel.h"

#include <vector>

namespace heed::cpu {

/// Rows of each instruction set, best first: /decode, /short, the set as such, and /tiles, which is chosen by name
/// alone.
std::vector<AttentionKernel> attention_kernels();

}  // namespace heed::cpu
