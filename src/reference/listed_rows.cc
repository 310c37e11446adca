#include "reference/listed_rows.h"

#include "reference/numbers.h"

#include <cstring>
#include <numeric>

namespace heed::reference {
namespace {

/// Rows of the same type; others are read and rounded number by number.
void copy_row(const TensorRows& x, std::int64_t from, std::int64_t columns, const TensorRows& to, std::int64_t row) {
    if (x.dtype == to.dtype && x.stride == 1 && to.stride == 1) {
        std::memcpy(to.row(row), x.row(from), static_cast<std::size_t>(columns * element_bytes(to.dtype)));
        return;
    }
    for (std::int64_t c = 0; c < columns; ++c) { reference::put(to, row, c, number(x, from, c)); }
}

}  // namespace

void gather(const TensorRows& x, std::span<const std::int64_t> rows, std::int64_t columns, const TensorRows& to) {
    for (std::size_t n = 0; n < rows.size(); ++n) { copy_row(x, rows[n], columns, to, static_cast<std::int64_t>(n)); }
}

void scatter(const TensorRows& x, std::span<const std::int64_t> rows, std::int64_t columns, const TensorRows& to) {
    for (std::size_t n = 0; n < rows.size(); ++n) { copy_row(x, static_cast<std::int64_t>(n), columns, to, rows[n]); }
}

double sum(std::span<const double> numbers) { return std::accumulate(numbers.begin(), numbers.end(), 0.0); }

void put_all(std::span<const double> numbers, const MutableView& to) {
    const Shape row_major = to.shape().row_major();
    for (std::size_t n = 0; n < numbers.size(); ++n) {
        std::int64_t offset = 0;
        for (int axis = 0; axis < to.rank(); ++axis) {
            offset += static_cast<std::int64_t>(n) / row_major[axis] % to.extent(axis) * to.stride(axis);
        }
        write_number(to.dtype(), to.data(), offset, numbers[n]);
    }
}

}  // namespace heed::reference
