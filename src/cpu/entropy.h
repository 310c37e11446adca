#pragma once
#include <cstdint>

namespace heed::cpu {

/// -sum of w ln w over `count` weights, in natural units: 0 ln 0 is 0, a NaN gives NaN. Within 1e-14 of what std::log
/// gives, in half its time.
double entropy(const float* weights, std::int64_t count);
double entropy(const double* weights, std::int64_t count);

}  // namespace heed::cpu
