#include "rounds.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <random>

namespace heed::bench {

Tensor random_tensor(const Shape& shape, unsigned seed, DType dtype) {
    Tensor tensor = Tensor::uninitialised(DType::f32, shape);
    std::minstd_rand generator(seed);
    std::uniform_real_distribution<float> draw(-1, 1);
    for (std::int64_t n = 0; n < tensor.elements(); ++n) { tensor.as<float>()[n] = draw(generator); }
    return dtype == DType::f32 ? std::move(tensor) : tensor.to(dtype);
}

std::vector<double> best_of(int rounds, const std::vector<std::function<void()>>& bodies) {
    std::vector<double> best(bodies.size(), std::numeric_limits<double>::infinity());
    for (int round = 0; round < rounds; ++round) {
        for (std::size_t n = 0; n < bodies.size(); ++n) {
            const auto start = std::chrono::steady_clock::now();
            bodies[n]();
            const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
            best[n] = std::min(best[n], took.count());
        }
    }
    return best;
}

}  // namespace heed::bench
