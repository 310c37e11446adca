#pragma once
#include <heed/view.h>

namespace heed::reference {

/// pooled [G*d, in] or [G*d]: the mean of the H/G heads of weight [H*d, in] or [H*d] that share a head of keys.
void pool_heads(const View& weight, std::int64_t heads, std::int64_t kv_heads, const MutableView& pooled);

}  // namespace heed::reference
