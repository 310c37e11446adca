#pragma once
/// Tensors [..., N] as rows, for the operations that walk the last axis. Plain data and functions that are always
/// inlined, because kernels of every instruction set read them.

#include <heed/dtype.h>

#include <cstdint>

namespace heed {

inline __attribute__((always_inline)) std::int64_t element_bytes(DType dtype) {
    switch (dtype) {
        case DType::f64:
        case DType::i64:
        case DType::u64: return 8;
        case DType::f32:
        case DType::i32:
        case DType::u32: return 4;
        case DType::bf16:
        case DType::f16:
        case DType::i16:
        case DType::u16: return 2;
        default: return 1;
    }
}

/// Rows of a tensor: leading axes that lie evenly behind one another are joined. Strides in elements.
struct TensorRows {
    DType dtype = DType::f32;
    char* data = nullptr;  ///< null: absent
    bool present = false;
    std::int64_t stride = 1;  ///< of the elements of a row
    int axes = 0;
    std::int64_t extent[8] = {};
    std::int64_t step[8] = {};

    inline __attribute__((always_inline)) char* row(std::int64_t n) const {
        std::int64_t offset = 0;
        for (int axis = axes - 1; axis > 0; --axis) {
            offset += n % extent[axis] * step[axis];
            n /= extent[axis];
        }
        if (axes > 0) { offset += n * step[0]; }
        return data + offset * element_bytes(dtype);
    }
    /// Element `column` of row n.
    inline __attribute__((always_inline)) char* at(std::int64_t n, std::int64_t column) const {
        return row(n) + column * stride * element_bytes(dtype);
    }
};

/// Does any of them hold double? Those are for the reference, which works in double.
template <class... Rows>
inline __attribute__((always_inline)) bool any_wide_rows(const Rows&... rows) {
    return ((rows.present && rows.dtype == DType::f64) || ...);
}

/// What a call works on: so many rows of so many columns.
struct RowsShape {
    std::int64_t rows = 0;
    std::int64_t columns = 0;
};

}  // namespace heed
