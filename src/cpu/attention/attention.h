#pragma once
#include "kernel/attention_kernel.h"

#include <vector>

namespace heed::cpu {

/// Rows of each instruction set, best first: /decode, /short, the set as such, and /tiles for who asks for it by name.
std::vector<AttentionKernel> attention_kernels();

}  // namespace heed::cpu
