#pragma once
/// Rows of caches whose pages lie on a GPU.

#include <heed/context.h>

#include "kernel/kv_transfer_problem.h"

namespace heed {

/// The type that rows of a storage have in a tensor: f32, bf16 or f16; f32 for those with scales.
DType kv_type(CacheStorage storage);

/// Of checked arguments, on the context's device, which is none of the CPU's: there caches have a way of their own.
void write_kv_rows(Context& context, const KvWriteProblem& problem);
void gather_kv_rows(Context& context, const KvGatherProblem& problem);

}  // namespace heed
