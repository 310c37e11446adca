#pragma once
/// Rows of tensors [b, h, row, column] of any float type as doubles, for references that are written row by row.

#include "base/dispatch.h"

#include <heed/view.h>

#include <limits>
#include <vector>

namespace heed::reference {

using Row = std::vector<double>;

constexpr double infinity = std::numeric_limits<double>::infinity();

inline std::size_t index(std::int64_t n) { return static_cast<std::size_t>(n); }

template <class AnyView>
std::int64_t offset(const AnyView& x, std::int64_t b, std::int64_t h, std::int64_t row, std::int64_t column) {
    return b * x.stride(0) + h * x.stride(1) + row * x.stride(2) + column * x.stride(3);
}
inline Row row_of(const View& x, std::int64_t b, std::int64_t h, std::int64_t row) {
    Row result(index(x.extent(3)));
    for (std::int64_t c = 0; c < x.extent(3); ++c) {
        result[index(c)] = read_number(x.dtype(), x.data(), offset(x, b, h, row, c));
    }
    return result;
}
inline void put_row(const MutableView& x, std::int64_t b, std::int64_t h, std::int64_t row, const Row& values) {
    for (std::int64_t c = 0; c < x.extent(3); ++c) {
        write_number(x.dtype(), x.data(), offset(x, b, h, row, c), values[index(c)]);
    }
}
inline double dot(const Row& a, const Row& b) {
    double sum = 0;
    for (std::size_t n = 0; n < a.size(); ++n) { sum += a[n] * b[n]; }
    return sum;
}
/// to += factor * x
inline void add(Row& to, double factor, const Row& x) {
    for (std::size_t n = 0; n < to.size(); ++n) { to[n] += factor * x[n]; }
}

}  // namespace heed::reference
