#pragma once
#include "kernel/linear_problem.h"
#include "kernel/tensor_rows.h"

#include <atomic>
#include <cstddef>
#include <span>

namespace heed {

/// How quantised weights lie in memory: outputs in panels of 16, inputs in groups of 32. For each panel, for each
/// group: 16 scales in f16, then the 32 numbers of each output, four inputs of one output next to each other:
///     int8: byte 64 q + 4 o + i is input 4 q + i of output o, + 128;  q < 8
///     int4: byte 64 q + 4 o + i has input 4 q + i of output o, + 8, in its lower half, input 4 (q + 4) + i in its
///     upper
/// What fills up the last panel and the last group is 0.
struct QuantizedLayout {
    static constexpr std::int64_t panel = 16, group = 32, scale_bytes = 2 * panel;
    static constexpr std::int64_t group_bytes(bool four_bits) {
        return scale_bytes + panel * group / (four_bits ? 2 : 1);
    }
    /// Of a group of one output in a GGUF file: Q4_0 and Q8_0.
    static constexpr std::size_t file_block_bytes(bool four_bits) { return four_bits ? 18 : 34; }
};

/// Memory laid out so.
struct QuantizedPanels {
    std::int64_t outputs = 0, inputs = 0;
    bool four_bits = false;
    std::uint8_t* data = nullptr;

    std::int64_t groups() const { return (inputs + QuantizedLayout::group - 1) / QuantizedLayout::group; }
};

/// Weights to be laid out so: rounded, or the numbers of a file's Q8_0 or Q4_0 blocks as they are.
struct QuantizeProblem {
    TensorRows weight;
    std::span<const std::byte> blocks;  ///< in place of weight
    QuantizedPanels to;
    std::atomic<bool>* refused = nullptr;  ///< set where a weight is not finite, or too large for a scale in f16
};

/// to = the weights that the panels hold.
struct DequantizeProblem {
    QuantizedPanels from;
    TensorRows to;
};

/// linear of weights in 8 or 4 bits: product.b is not used.
struct QuantizedProblem {
    LinearProblem linear;
    const std::uint8_t* blocks = nullptr;
    bool four_bits = false;
};

}  // namespace heed
