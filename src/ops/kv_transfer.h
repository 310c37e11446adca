#pragma once
/// Rows of caches to and from tensors, on the device that their pages lie on.

#include <heed/context.h>

#include "kernel/kv_rows.h"
#include "kernel/kv_transfer_problem.h"

namespace heed {

/// The type that rows of a storage have in a tensor: f32, bf16 or f16; f32 for those with scales.
DType kv_type(CacheStorage storage);

/// Of checked arguments, on the context's device.
void write_kv_rows(Context& context, const KvWriteProblem& problem);
void gather_kv_rows(Context& context, const KvGatherProblem& problem);

/// A row of the CPU's memory: x = stored row, and the first `columns` numbers of one. The numbers of i8 and i4 are
/// finite.
void write_kv_row(const KvRowLayout& layout, const float* x, char* row, float* scales);
void read_kv_row(const KvRowLayout& layout, const char* row, const float* scales, std::int64_t columns, float* x);
/// Row t of head g of [1,G,T,D], as float32.
void load_kv_row(const View& x, std::int64_t g, std::int64_t t, float* row);
/// Where scales are stored, a row of these may not hold infinity or NaN.
bool fits_scales(const float* x, std::int64_t columns);

}  // namespace heed
