#pragma once
#include <heed/view.h>

namespace heed {

/// i32 or i64, [batch,length], [1,length] or [length], each within 2^53; comes back with two axes. An absent view
/// stays absent.
View checked_positions(const char* function, const char* argument, const View& positions, std::int64_t batch,
                       std::int64_t length);

/// `first` and the positions that follow it stay within 2^53; where positions are given it says nothing and is 0.
void check_first(const char* function, std::int64_t first, std::int64_t length, const View& positions);

}  // namespace heed
