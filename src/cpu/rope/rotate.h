#pragma once
#include "kernel/kernel.h"
#include "kernel/rotate_problem.h"

namespace heed::cpu {

Kernel<RotateProblem> rotate_kernel();

}  // namespace heed::cpu
