#pragma once
/// Weights of linear layers in the order in which products read them. Packing costs as much as reading them a few
/// times; after that a step of decoding reads memory from front to back, and many rows need no rearranging.
///
///     const auto packed = heed::PackedMatrix::pack(context, weight, heed::DType::bf16);
///     heed::linear(context, x, packed, out, {.bias = bias});

#include <cstddef>
#include <cstdint>
#include <memory>

#include <heed/context.h>
#include <heed/error.h>
#include <heed/linear.h>
#include <heed/view.h>

namespace heed {

class HEED_API PackedMatrix {
public:
    PackedMatrix() = default;
    /// weight [N,K] of any float type, kept as f32 or bf16.
    static PackedMatrix pack(Context& context, const View& weight, DType dtype);

    std::int64_t outputs() const { return outputs_; }  ///< N
    std::int64_t inputs() const { return inputs_; }    ///< K
    DType dtype() const { return dtype_; }
    /// Of memory.
    std::size_t bytes() const { return bytes_; }
    explicit operator bool() const { return data_ != nullptr; }

    /// For kernels: panels of 64 outputs, see src/kernel/packed_problem.h.
    const std::uint32_t* data() const { return data_.get(); }

private:
    PackedMatrix(std::int64_t outputs, std::int64_t inputs, DType dtype);
    std::int64_t outputs_ = 0, inputs_ = 0;
    DType dtype_ = DType::f32;
    std::size_t bytes_ = 0;
    std::shared_ptr<std::uint32_t> data_;
};

/// out [...,N] = activation(x [...,K] weight^T + bias).
///
/// Where the weights are bf16, x is rounded to bf16 first. Sums are float32; each element is added up in an order that
/// depends on K alone: neither threads nor the other rows change a bit of it. Types and overlaps as in the linear of
/// plain weights; f64 is rounded to f32.
HEED_API void linear(Context& context, const View& x, const PackedMatrix& weight, const MutableView& out,
                     const LinearOptions& options = {});

}  // namespace heed
