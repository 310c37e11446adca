#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <type_traits>

#include <heed/device.h>
#include <heed/dtype.h>

namespace heed {

/// Up to eight extents, or strides, in elements, slowest axis first.
class HEED_API Shape {
public:
    static constexpr int max_rank = 8;

    Shape() = default;
    Shape(std::initializer_list<std::int64_t> extents);
    explicit Shape(std::span<const std::int64_t> extents);

    int rank() const { return rank_; }
    std::int64_t operator[](int axis) const { return extents_[static_cast<std::size_t>(axis)]; }
    std::int64_t& operator[](int axis) { return extents_[static_cast<std::size_t>(axis)]; }
    const std::int64_t* begin() const { return extents_.data(); }
    const std::int64_t* end() const { return extents_.data() + rank_; }

    /// Number of elements. Throws Error where an extent is negative or the product leaves 63 bits.
    std::int64_t elements() const;
    /// Row-major strides of a tensor of this shape.
    Shape row_major() const;

    bool operator==(const Shape& other) const;

private:
    std::array<std::int64_t, max_rank> extents_{};
    int rank_ = 0;
};

/// "[2, 8, 20, 64]"
HEED_API std::string to_string(const Shape& shape);

/// Somebody else's memory seen as a tensor: never owns, never allocates, cheap to copy.
/// Strides are in elements and may be anything, 0 and negative included. `device` says where the memory is.
/// A default-constructed view is absent: options use that to say "not given".
template <bool Mutable>
class BasicView {
public:
    using Pointer = std::conditional_t<Mutable, void*, const void*>;
    template <class T>
    using ElementPointer = std::conditional_t<Mutable, T*, const T*>;

    BasicView() = default;
    BasicView(DType dtype, Pointer data, Shape shape, Shape strides, Device device = {})
        : data_(data), dtype_(dtype), present_(true), device_(device), shape_(shape), strides_(strides) {}
    BasicView(DType dtype, Pointer data, Shape shape, Device device = {})
        : BasicView(dtype, data, shape, shape.row_major(), device) {}
    /// Row-major: the last axis is contiguous.
    template <Element T>
    BasicView(T* data, Shape shape) requires(Mutable) : BasicView(dtype_of<T>(), data, shape, shape.row_major()) {}
    template <Element T>
    BasicView(T* data, Shape shape, Shape strides) requires(Mutable) : BasicView(dtype_of<T>(), data, shape, strides) {}
    template <Element T>
    BasicView(const T* data, Shape shape) requires(!Mutable)
        : BasicView(dtype_of<T>(), data, shape, shape.row_major()) {}
    template <Element T>
    BasicView(const T* data, Shape shape, Shape strides) requires(!Mutable)
        : BasicView(dtype_of<T>(), data, shape, strides) {}
    /// What may be written may be read.
    template <bool OtherMutable>
    requires(OtherMutable && !Mutable) BasicView(const BasicView<OtherMutable>& other) {
        if (other) { *this = BasicView(other.dtype(), other.data(), other.shape(), other.strides(), other.device()); }
    }

    explicit operator bool() const { return present_; }
    DType dtype() const { return dtype_; }
    Device device() const { return device_; }
    Pointer data() const { return data_; }
    const Shape& shape() const { return shape_; }
    const Shape& strides() const { return strides_; }
    int rank() const { return shape_.rank(); }
    std::int64_t extent(int axis) const { return shape_[axis]; }
    std::int64_t stride(int axis) const { return strides_[axis]; }

    /// The elements, for code that has looked at dtype().
    template <Element T>
    ElementPointer<T> as() const {
        return static_cast<ElementPointer<T>>(data_);
    }

    /// The axes in another order: `bthd.permute({0, 2, 1, 3})` shows [B,T,H,D] memory as [B,H,T,D].
    BasicView permute(std::initializer_list<int> order) const;
    /// Elements [begin, end) along one axis.
    BasicView slice(int axis, std::int64_t begin, std::int64_t end) const;

private:
    Pointer data_ = nullptr;
    DType dtype_ = DType::f32;
    bool present_ = false;
    Device device_{};
    Shape shape_;
    Shape strides_;
};

using View = BasicView<false>;
using MutableView = BasicView<true>;

extern template class HEED_API BasicView<false>;
extern template class HEED_API BasicView<true>;

}  // namespace heed
