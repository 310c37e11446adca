#pragma once
#include "cpu/isa/tables.h"

namespace heed::cpu {

/// Of src/cpu/isa/amx.cc, which is built with that of avx512bf16_kernels.
extern const Kernels amx_kernels;

/// Null where this process may compute on AMX tiles in bf16; otherwise why not. `missing`: why the CPU falls short
/// already. Asks the system for its permission, which holds for all threads.
const char* without_amx(const char* missing);

}  // namespace heed::cpu
