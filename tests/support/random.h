#pragma once
#include <heed/tensor.h>

#include "base/dispatch.h"

#include <cmath>
#include <cstdint>

namespace heed::testing {

/// SplitMix64: the same numbers on every machine and with every standard library.
class Random {
public:
    explicit Random(std::uint64_t seed) : state_(seed) {}

    std::uint64_t next() {
        state_ += 0x9E3779B97F4A7C15U;
        std::uint64_t z = state_;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
        return z ^ (z >> 31);
    }
    /// 0 to n - 1.
    std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(n)); }
    /// In (0, 1).
    double uniform() { return (static_cast<double>(next() >> 11) + 0.5) * 0x1p-53; }
    double normal() { return std::sqrt(-2 * std::log(uniform())) * std::cos(6.283185307179586 * uniform()); }
    bool chance(double probability) { return uniform() < probability; }

private:
    std::uint64_t state_;
};

inline Tensor random_tensor(Random& random, DType dtype, const Shape& shape, double scale = 1) {
    Tensor tensor(dtype, shape);
    for (std::int64_t n = 0; n < tensor.elements(); ++n) {
        write_number(dtype, tensor.data(), n, scale * random.normal());
    }
    return tensor;
}

/// The same for the same seed, of type f32.
inline Tensor random_numbers(const Shape& shape, std::uint64_t seed, double scale = 1) {
    Random random(seed);
    return random_tensor(random, DType::f32, shape, scale);
}

}  // namespace heed::testing
