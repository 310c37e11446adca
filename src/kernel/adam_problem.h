#pragma once
#include <heed/dtype.h>

#include <cstdint>

namespace heed {

/// A row-major tensor as one line of numbers.
struct Numbers {
    DType dtype = DType::f32;
    char* data = nullptr;
};

/// One parameter of a checked call of <heed/optimizer.h>, with what depends on the step alone worked out.
struct AdamProblem {
    std::int64_t count = 0;
    Numbers value, gradient, first, second, rounded;  ///< rounded may be null
    double gradient_scale = 1;
    double beta1 = 0, beta2 = 0, eps = 0;
    double keep = 1;   ///< value is multiplied by this: decay of AdamW
    double decay = 0;  ///< this times value joins the gradient: decay of Adam
    double rate = 0;   ///< learning rate / (1 - beta1^t)
    double root = 1;   ///< 1 / sqrt(1 - beta2^t)
};

}  // namespace heed
