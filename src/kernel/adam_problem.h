#pragma once
#include <heed/dtype.h>

#include <cstdint>
#include <span>

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

    bool wide() const {
        const Numbers all[] = {value, gradient, first, second, rounded};
        bool any = false;
        for (const Numbers& x : all) { any = any || (x.data != nullptr && x.dtype == DType::f64); }
        return any;
    }
};

/// A step on several parameters.
struct AdamStep {
    std::span<const AdamProblem> parameters;
    bool wide() const {
        bool any = false;
        for (const AdamProblem& p : parameters) { any = any || p.wide(); }
        return any;
    }
};

/// Sums of squares of pieces of several tensors, in the order of the pieces.
struct SquaresProblem {
    struct Tensor {
        Numbers numbers;
        std::int64_t count = 0;
    };
    std::span<const Tensor> tensors;
    double* sums = nullptr;  ///< one for each piece
    bool wide() const {
        bool any = false;
        for (const Tensor& x : tensors) { any = any || x.numbers.dtype == DType::f64; }
        return any;
    }
};

/// How lists of tensors are cut: by their sizes alone.
struct NumberPieces {
    static constexpr std::int64_t size = 16384;
    static constexpr std::int64_t count(std::int64_t numbers) { return (numbers + size - 1) / size; }
};

}  // namespace heed
