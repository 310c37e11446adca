#pragma once
/// Rows of `TensorRows` as doubles.

#include "base/dispatch.h"
#include "kernel/tensor_rows.h"
#include "reference/rows.h"

namespace heed::reference {

inline double number(const TensorRows& x, std::int64_t row, std::int64_t column) {
    return read_number(x.dtype, x.row(row), column * x.stride);
}
inline void put(const TensorRows& x, std::int64_t row, std::int64_t column, double value) {
    write_number(x.dtype, x.row(row), column * x.stride, value);
}
/// One row; where x is absent, `otherwise` everywhere.
inline Row numbers(const TensorRows& x, std::int64_t row, std::int64_t columns, double otherwise = 0) {
    Row result(index(columns), otherwise);
    if (!x.present) { return result; }
    const char* data = x.row(row);
    for (std::int64_t c = 0; c < columns; ++c) { result[index(c)] = read_number(x.dtype, data, c * x.stride); }
    return result;
}
/// Writes one row, where there is one to write to.
inline void put_numbers(const TensorRows& x, std::int64_t row, const Row& values) {
    if (!x.present) { return; }
    char* data = x.row(row);
    for (std::size_t c = 0; c < values.size(); ++c) {
        write_number(x.dtype, data, static_cast<std::int64_t>(c) * x.stride, values[c]);
    }
}

}  // namespace heed::reference
