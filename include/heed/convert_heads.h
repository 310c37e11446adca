#pragma once
/// Turns trained multi-head attention into grouped-query or multi-query attention: the first step; training goes on
/// for a short while afterwards. Query and output projections stay as they are.

#include <cstdint>

#include <heed/error.h>
#include <heed/view.h>

namespace heed {

/// pooled [G*d, ...] = the mean over each group of heads of weight [H*d, ...], for the projection of keys or of values:
/// [H*d, in] or a bias [H*d]. Head h joins group h / (H/G), the one that attend pairs it with. kv_heads (G) divides
/// heads (H), and heads divides the first axis. Any strides; each of f32, bf16, f16, f64; sums are double, rounded
/// once. Where the heads of a group are equal the mean is theirs, to the bit (f64: to rounding), and the model
/// computes what it did before.
HEED_API void pool_heads(const View& weight, std::int64_t heads, std::int64_t kv_heads, const MutableView& pooled);

}  // namespace heed
