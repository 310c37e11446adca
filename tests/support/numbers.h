#pragma once
#include <limits>

namespace heed::testing {

constexpr double infinity = std::numeric_limits<double>::infinity();

}  // namespace heed::testing
