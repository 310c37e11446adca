#include "conformance/problem.h"

#include "base/dispatch.h"

namespace heed::conformance {

Placed::Placed(DType dtype, const Shape& shape, std::string_view layout) {
    const int rank = shape.rank();
    // Axes in memory order, slowest first, with the room each takes and where its first element lies.
    std::vector<int> order;
    for (int axis = 0; axis < rank; ++axis) { order.push_back(axis); }
    if (layout == "BTHD" && rank >= 3) { std::swap(order[1], order[2]); }
    Shape room = shape;
    Shape first = shape;
    Shape step = shape;
    for (int axis = 0; axis < rank; ++axis) {
        first[axis] = 0;
        step[axis] = 1;
        if (layout == "inside") {
            room[axis] = shape[axis] + 2 + axis;
            first[axis] = 1;
        }
        const bool last = axis == rank - 1;
        if (layout == "every-other" && last) {
            room[axis] = shape[axis] > 0 ? 2 * shape[axis] - 1 : 0;
            step[axis] = 2;
        }
        const bool reverse = (layout == "reversed" && axis == 2) || (layout == "mirrored" && (last || axis == 1));
        if (reverse && shape[axis] > 0) {
            first[axis] = shape[axis] - 1;
            step[axis] = -1;
        }
    }
    Shape strides = shape;
    std::int64_t size = 1;
    std::int64_t start = 0;
    for (int k = rank - 1; k >= 0; --k) {
        const int axis = order[static_cast<std::size_t>(k)];
        strides[axis] = step[axis] * size;
        start += first[axis] * size;
        size *= room[axis];
    }
    const auto bytes = static_cast<std::int64_t>(size_of(dtype));
    memory_.assign(static_cast<std::size_t>(size * bytes), std::byte{0xFF});
    offset_ = size > 0 ? start * bytes : 0;
    view_ = View(dtype, memory_.data() + offset_, shape, strides);
}

std::int64_t Placed::element_offset(std::int64_t n) const {
    std::int64_t offset = 0;
    for (int axis = view_.rank() - 1; axis >= 0; --axis) {
        offset += n % view_.extent(axis) * view_.stride(axis);
        n /= view_.extent(axis);
    }
    return offset;
}

double Placed::load(std::int64_t n) const { return read_number(view_.dtype(), view_.data(), element_offset(n)); }

void Placed::store(std::int64_t n, double value) {
    write_number(view_.dtype(), memory_.data() + offset_, element_offset(n), value);
}

std::vector<double> Placed::numbers() const {
    std::vector<double> result;
    const std::int64_t count = view_ ? view_.shape().elements() : 0;
    for (std::int64_t n = 0; n < count; ++n) { result.push_back(load(n)); }
    return result;
}

bool Placed::surroundings_untouched() const {
    if (!view_) { return true; }
    std::vector<char> inside(memory_.size(), 0);
    const auto size = static_cast<std::int64_t>(size_of(view_.dtype()));
    for (std::int64_t n = 0; n < view_.shape().elements(); ++n) {
        for (std::int64_t byte = 0; byte < size; ++byte) {
            inside[static_cast<std::size_t>(offset_ + element_offset(n) * size + byte)] = 1;
        }
    }
    for (std::size_t byte = 0; byte < memory_.size(); ++byte) {
        if (inside[byte] == 0 && memory_[byte] != std::byte{0xFF}) { return false; }
    }
    return true;
}

}  // namespace heed::conformance
