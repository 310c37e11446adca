#pragma once
#include "kernel/attention_kernel.h"

#include <vector>

namespace heed::cpu {

/// The tiled kernels, a row for each instruction set, best first.
std::vector<AttentionKernel> attention_kernels();

}  // namespace heed::cpu
