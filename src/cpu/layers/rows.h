#pragma once
#include "cpu/matmul/gemm.h"
#include "cpu/simd/math.h"
#include "kernel/tensor_rows.h"

/// Rows of tensors as floats: where they lie if they are contiguous floats, otherwise through a buffer.

namespace heed::cpu {

/// Numbers taken at a time by what needs no whole row: small enough for the stack and L1.
constexpr std::int64_t layer_chunk = 512;

/// Columns [begin, begin + count) of row n; null where x is absent.
template <class Isa>
HEED_INLINE const float* numbers_in(const TensorRows& x, std::int64_t n, std::int64_t begin, std::int64_t count,
                                    float* buffer) {
    if (!x.present) { return nullptr; }
    const char* from = x.at(n, begin);
    if (x.dtype == DType::f32 && x.stride == 1) { return reinterpret_cast<const float*>(from); }
    load_row<Isa>(x.dtype, from, x.stride, count, buffer);
    return buffer;
}

/// Where to compute columns [begin, begin + count) of row n: in place, or in the buffer, which `end` then writes.
struct NumbersOut {
    float* data;
    bool buffered;
};
template <class Isa>
HEED_INLINE NumbersOut numbers_out(const TensorRows& x, std::int64_t n, std::int64_t begin, float* buffer) {
    if (x.present && x.dtype == DType::f32 && x.stride == 1) {
        return {reinterpret_cast<float*>(x.at(n, begin)), false};
    }
    return {buffer, true};
}
template <class Isa>
HEED_INLINE void end_numbers(const TensorRows& x, std::int64_t n, std::int64_t begin, std::int64_t count,
                             const NumbersOut& out) {
    if (x.present && out.buffered) { store_row<Isa>(x.dtype, x.at(n, begin), x.stride, count, out.data, 1.0F); }
}

/// Calls f(column, count) for [begin, end) in chunks.
template <class Function>
HEED_INLINE void for_chunks(std::int64_t begin, std::int64_t end, Function&& f) {
    for (std::int64_t c = begin; c < end; c += layer_chunk) { f(c, smaller(layer_chunk, end - c)); }
}

}  // namespace heed::cpu
