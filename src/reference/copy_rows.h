#pragma once
#include <heed/view.h>

namespace heed::reference {

/// to [B,H,T,E] = from, rounded to its type; any strides.
void copy_rows(const View& from, const MutableView& to);

}  // namespace heed::reference
