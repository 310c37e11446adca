#pragma once
#include <cstdint>
#include <vector>

#include <heed/dtype.h>

namespace heed {

/// The usual slopes of ALiBi, one a query head, for AttentionOptions::alibi_slopes. With P the largest power of two
/// up to `heads`: 2^(-8(k+1)/P) for the first P heads, then 2^(-4(2k+1)/P). Eight heads: 1/2, 1/4 ... 1/256.
HEED_API std::vector<double> default_alibi_slopes(std::int64_t heads);

}  // namespace heed
