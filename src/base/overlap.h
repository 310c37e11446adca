#pragma once
#include <heed/view.h>

namespace heed {

/// Do two views share an element? Exact where their axes nest with the same strides, whatever their extents (slices of
/// one fused buffer); otherwise true wherever their address ranges meet.
bool overlaps(const View& a, const View& b);

/// Are they one and the same: address, type, shape and strides?
bool same_memory(const View& a, const View& b);

/// Can two different indices of this view name the same element? (true also where that is not certain)
bool overlaps_itself(const View& view);

}  // namespace heed
