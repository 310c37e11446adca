#pragma once
#include "kernel/linear_problem.h"
#include "kernel/tensor_rows.h"

namespace heed {

/// How packed weights lie in memory: outputs in panels of 64. A panel has, for each input (f32) or pair of inputs
/// (bf16, the even one in the lower half), 64 lanes of 32 bits. What fills up the last panel and pair is 0.
struct PackedLayout {
    static constexpr std::int64_t panel = 64;
    static constexpr std::int64_t lanes(std::int64_t inputs, bool pairs) { return pairs ? (inputs + 1) / 2 : inputs; }
};

/// Weights [outputs, inputs] to be laid out so.
struct PackWeightsProblem {
    TensorRows weight;
    std::int64_t outputs = 0, inputs = 0;
    bool pairs = false;  ///< rounded to bf16
    std::uint32_t* panels = nullptr;
};

/// linear of packed weights: product.b is not used.
struct PackedProblem {
    LinearProblem linear;
    const std::uint32_t* panels = nullptr;
    bool pairs = false;  ///< of bf16; x is rounded to bf16
};

}  // namespace heed
