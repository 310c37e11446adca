#include <heed/error.h>
#include <heed/tensor.h>

#include "base/dispatch.h"

#include <cstring>
#include <new>

namespace heed {
namespace {

constexpr std::align_val_t alignment{64};

/// Calls visit(offset in view, running index) for every element in row-major order.
template <class Visit>
void for_each_element(const View& view, Visit visit) {
    const std::int64_t total = view.shape().elements();
    std::int64_t index[Shape::max_rank] = {};
    std::int64_t offset = 0;
    for (std::int64_t n = 0; n < total; ++n) {
        visit(offset, n);
        for (int axis = view.rank() - 1; axis >= 0; --axis) {
            offset += view.stride(axis);
            if (++index[axis] < view.extent(axis)) { break; }
            offset -= index[axis] * view.stride(axis);
            index[axis] = 0;
        }
    }
}

}  // namespace

void Tensor::Free::operator()(std::byte* memory) const { ::operator delete[](memory, alignment); }

Tensor Tensor::uninitialised(DType dtype, Shape shape) {
    Tensor tensor;
    tensor.dtype_ = dtype;
    tensor.shape_ = shape;
    std::int64_t bytes = 0;
    if (__builtin_mul_overflow(shape.elements(), static_cast<std::int64_t>(size_of(dtype)), &bytes)) {
        throw Error("[Tensor] shape: more than 2^63 bytes in " + to_string(shape));
    }
    tensor.data_.reset(static_cast<std::byte*>(::operator new[](static_cast<std::size_t>(bytes), alignment)));
    return tensor;
}

Tensor::Tensor(DType dtype, Shape shape) : Tensor(uninitialised(dtype, shape)) { std::memset(data(), 0, bytes()); }

Tensor Tensor::clone() const { return copy_of(view()); }

Tensor Tensor::copy_of(const View& view) {
    Tensor copy = uninitialised(view.dtype(), view.shape());
    const std::size_t size = size_of(view.dtype());
    const char* from = static_cast<const char*>(view.data());
    char* to = static_cast<char*>(copy.data());
    if (view.strides() == view.shape().row_major()) {
        if (copy.bytes() > 0) { std::memcpy(to, from, copy.bytes()); }
        return copy;
    }
    for_each_element(view, [&](std::int64_t offset, std::int64_t n) {
        std::memcpy(to + n * static_cast<std::int64_t>(size), from + offset * static_cast<std::int64_t>(size), size);
    });
    return copy;
}

Tensor Tensor::to(DType dtype) const {
    if (dtype == dtype_) { return clone(); }
    Tensor result = uninitialised(dtype, shape_);
    const std::int64_t total = elements();
    const bool integers = !is_floating(dtype) && (dtype_ == DType::i64 || dtype_ == DType::i32);
    for (std::int64_t n = 0; n < total; ++n) {
        if (integers && dtype == DType::i64) {  // past 2^53 a double would round
            result.as<std::int64_t>()[n] = read_integer(dtype_, data(), n);
        } else {
            write_number(dtype, result.data(), n, read_number(dtype_, data(), n));
        }
    }
    return result;
}

}  // namespace heed
