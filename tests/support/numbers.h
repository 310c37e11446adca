#pragma once
#include <limits>

namespace heed::testing {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr float hidden = -std::numeric_limits<float>::infinity();  ///< a bias that hides

}  // namespace heed::testing
