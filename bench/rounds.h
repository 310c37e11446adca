#pragma once
/// Inputs and rounds that the programs of this folder share.

#include <functional>
#include <vector>

#include <heed/tensor.h>

namespace heed::bench {

/// Even between -1 and 1.
Tensor random_tensor(const Shape& shape, unsigned seed, DType dtype = DType::f32);

/// Seconds of each body, the best of so many rounds in which every body runs in turn, so that a change of the machine's
/// speed meets all alike.
std::vector<double> best_of(int rounds, const std::vector<std::function<void()>>& bodies);

}  // namespace heed::bench
