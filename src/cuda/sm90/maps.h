#pragma once
#include "cuda/attention_call.h"

#include <cuda.h>

namespace heed::cuda::sm90 {

struct Extents {
    std::int64_t columns, rows, heads, batch;
};

/// Describes a tensor of 16-bit numbers to the copy engine: boxes of 64 columns and `box_rows` rows, 128-byte swizzle.
/// False where the driver refuses (strides that are no multiple of 16 bytes, say).
bool rows_map(CUtensorMap& map, const Tensor4& x, const Extents& extents, int box_rows);

/// The bias as [columns of keys, rows of queries] tiles. False where it is none, or not of a kind that can be copied.
bool bias_map(CUtensorMap& map, const AttentionCall& call, int box_rows);

}  // namespace heed::cuda::sm90
