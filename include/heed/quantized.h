#pragma once
/// Weights of linear layers in 8 or 4 bits, for what waits for memory: generating text reads every weight for every
/// token.
///
///     const auto small = heed::QuantizedMatrix::quantize(context, weight, heed::WeightFormat::int8);
///     heed::linear(context, x, small, out, {.bias = bias});

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include <heed/context.h>
#include <heed/error.h>
#include <heed/linear.h>
#include <heed/view.h>

namespace heed {

/// Along K, 32 weights share a scale d, kept in f16; a weight is d times a whole number. The last group of a row whose
/// K is no multiple of 32 is shorter.
enum class WeightFormat : std::uint8_t {
    int8,  ///< -127..127, d = largest magnitude / 127: 8.5 bits a weight; the numbers of GGUF's Q8_0
    int4,  ///< -8..7, d = (number of largest magnitude) / -8: 4.5 bits a weight; the numbers of GGUF's Q4_0
};

class HEED_API QuantizedMatrix {
public:
    QuantizedMatrix() = default;
    /// weight [N,K] of any float type. Numbers that are not finite are refused.
    static QuantizedMatrix quantize(Context& context, const View& weight, WeightFormat format);
    /// From blocks of GGUF's Q8_0 (34 bytes: f16 d, 32 i8) or Q4_0 (18 bytes: f16 d, 16 bytes whose lower halves are
    /// the first 16 numbers + 8) of N rows; K is a multiple of 32.
    static QuantizedMatrix from_blocks(Context& context, std::span<const std::byte> blocks, std::int64_t outputs,
                                       std::int64_t inputs, WeightFormat format);

    std::int64_t outputs() const { return outputs_; }  ///< N
    std::int64_t inputs() const { return inputs_; }    ///< K
    WeightFormat format() const { return format_; }
    /// Of memory.
    std::size_t bytes() const { return bytes_; }
    explicit operator bool() const { return data_ != nullptr; }

    /// out [N,K] in any float type.
    void dequantize(Context& context, const MutableView& out) const;

    /// For kernels: panels of 16 outputs, see src/kernel/quantized_problem.h.
    const std::uint8_t* data() const { return data_.get(); }

private:
    QuantizedMatrix(std::int64_t outputs, std::int64_t inputs, WeightFormat format);
    std::int64_t outputs_ = 0, inputs_ = 0;
    WeightFormat format_ = WeightFormat::int8;
    std::size_t bytes_ = 0;
    std::shared_ptr<std::uint8_t> data_;
};

/// out [...,N] = activation(x [...,K] weight^T + bias).
///
/// x is rounded to 8 bits first: 32 numbers along K share a scale of largest magnitude / 127. Sums of 32 products are
/// whole numbers and exact, their sum is float32 in the order of K: neither threads nor the other rows change a bit. A
/// group of x that has a number that is not finite gives NaN. Types and overlaps as in the linear of floats; f64 is
/// rounded to f32.
HEED_API void linear(Context& context, const View& x, const QuantizedMatrix& weight, const MutableView& out,
                     const LinearOptions& options = {});

/// Asks the system to keep this memory in huge pages, where it gives them: large weights are read a tenth to a fifth
/// faster. Call it before the memory is written. Nothing happens where it cannot be done.
HEED_API void prefer_huge_pages(const MutableView& memory);

}  // namespace heed
