#pragma once
#include "cpu/isa/tables.h"
#include "cpu/simd/convert.h"

/// Sums over single rows of any float type and stride.

namespace heed::cpu {

/// Elements taken at a time: small enough for the stack and L1.
constexpr std::int64_t row_chunk = 256;

template <class Isa>
HEED_INLINE void load_chunk(const RowAddress& row, std::int64_t begin, std::int64_t count, float* to) {
    const std::int64_t bytes = row.dtype == DType::f32 ? 4 : row.dtype == DType::f64 ? 8 : 2;
    load_row<Isa>(row.dtype, row.data + begin * row.stride * bytes, row.stride, count, to);
}

/// to = sum_n weight[n] * row[n], 0 where count is 0. `to` may be one of the rows.
template <class Isa>
void combine_rows(const RowAddress* row, const float* weight, std::int64_t count, std::int64_t size, RowAddress to) {
    const std::int64_t bytes = to.dtype == DType::f32 ? 4 : to.dtype == DType::f64 ? 8 : 2;
    float sum[row_chunk];
    float part[row_chunk];
    for (std::int64_t begin = 0; begin < size; begin += row_chunk) {
        const std::int64_t width = smaller(row_chunk, size - begin);
        for (std::int64_t c = 0; c < width; ++c) { sum[c] = 0; }
        for (std::int64_t n = 0; n < count; ++n) {
            load_chunk<Isa>(row[n], begin, width, part);
            // The first is not added to 0, which would turn its -0 into 0.
            if (n == 0) {
                for (std::int64_t c = 0; c < width; ++c) { sum[c] = weight[0] * part[c]; }
            } else {
                for (std::int64_t c = 0; c < width; ++c) { sum[c] += weight[n] * part[c]; }
            }
        }
        store_row<Isa>(to.dtype, to.data + begin * to.stride * bytes, to.stride, width, sum, 1.0F);
    }
}

/// Sum of a * b, in an order that depends on the size alone.
template <class Isa>
float dot_rows(const RowAddress& a, const RowAddress& b, std::int64_t size) {
    constexpr int L = Isa::lanes;
    using S = Simd<Isa, L>;
    float x[row_chunk];
    float y[row_chunk];
    F<L> sum[4] = {};
    for (std::int64_t begin = 0; begin < size; begin += row_chunk) {
        const std::int64_t width = smaller(row_chunk, size - begin);
        const std::int64_t padded = round_up(width, 4 * L);
        load_chunk<Isa>(a, begin, width, x);
        load_chunk<Isa>(b, begin, width, y);
        for (std::int64_t c = width; c < padded; ++c) { x[c] = y[c] = 0; }
        for (std::int64_t c = 0; c < padded; c += 4 * L) {
            HEED_UNROLL
            for (int n = 0; n < 4; ++n) { sum[n] += S::load(x + c + n * L) * S::load(y + c + n * L); }
        }
    }
    return S::reduce_add((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

}  // namespace heed::cpu
