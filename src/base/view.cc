#include <heed/error.h>
#include <heed/view.h>

#include "base/refuse.h"

#include <algorithm>

namespace heed {

Shape::Shape(std::initializer_list<std::int64_t> extents) : Shape(std::span(extents.begin(), extents.size())) {}

Shape::Shape(std::span<const std::int64_t> extents) : rank_(static_cast<int>(extents.size())) {
    if (extents.size() > max_rank) { refuse("Shape", "extents", "at most 8 axes", std::to_string(extents.size())); }
    std::copy(extents.begin(), extents.end(), extents_.begin());
}

std::int64_t Shape::elements() const {
    bool empty = false;
    for (const std::int64_t extent : *this) {
        if (extent < 0) { refuse("Shape", "extents", "0 or more", to_string(*this)); }
        empty = empty || extent == 0;
    }
    std::int64_t product = empty ? 0 : 1;
    for (const std::int64_t extent : *this) {
        if (!empty && __builtin_mul_overflow(product, extent, &product)) {
            refuse("Shape", "extents", "fewer than 2^63 elements", to_string(*this));
        }
    }
    return product;
}

Shape Shape::row_major() const {
    Shape strides = *this;
    std::int64_t stride = 1;
    for (int axis = rank_ - 1; axis >= 0; --axis) {
        strides[axis] = stride;
        // Where this overflows, elements() throws before anybody uses a stride; until then, no undefined behaviour.
        static_cast<void>(__builtin_mul_overflow(stride, std::max<std::int64_t>((*this)[axis], 1), &stride));
    }
    return strides;
}

bool Shape::operator==(const Shape& other) const { return std::equal(begin(), end(), other.begin(), other.end()); }

std::string to_string(const Shape& shape) {
    std::string text = "[";
    for (int axis = 0; axis < shape.rank(); ++axis) {
        if (axis > 0) { text += ", "; }
        text += std::to_string(shape[axis]);
    }
    return text + "]";
}

namespace {

std::string listed(std::initializer_list<int> order) {
    std::string text;
    for (const int axis : order) { text += (text.empty() ? "" : ", ") + std::to_string(axis); }
    return text.empty() ? "none" : text;
}

}  // namespace

template <bool Mutable>
BasicView<Mutable> BasicView<Mutable>::permute(std::initializer_list<int> order) const {
    Shape shape = shape_;
    Shape strides = strides_;
    unsigned seen = 0;
    int to = 0;
    for (const int from : order) {
        if (from < 0 || from >= rank() || static_cast<int>(order.size()) != rank() || (seen >> from & 1U) != 0) {
            refuse("permute", "order", "each axis of " + to_string(shape_) + " once", listed(order));
        }
        seen |= 1U << from;
        shape[to] = shape_[from];
        strides[to++] = strides_[from];
    }
    return BasicView(dtype_, data_, shape, strides, device_);
}

template <bool Mutable>
BasicView<Mutable> BasicView<Mutable>::slice(int axis, std::int64_t begin, std::int64_t end) const {
    if (axis < 0 || axis >= rank() || begin < 0 || end < begin || end > shape_[axis]) {
        refuse("slice", "range", "one within " + to_string(shape_),
               std::to_string(begin) + " to " + std::to_string(end) + " of axis " + std::to_string(axis));
    }
    Shape shape = shape_;
    shape[axis] = end - begin;
    using Byte = std::conditional_t<Mutable, char, const char>;
    const auto bytes = begin * strides_[axis] * static_cast<std::int64_t>(size_of(dtype_));
    return BasicView(dtype_, begin == end ? data_ : static_cast<Byte*>(data_) + bytes, shape, strides_, device_);
}

template class BasicView<false>;
template class BasicView<true>;

}  // namespace heed
