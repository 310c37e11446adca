#pragma once
#include "cpu/attention_backward_pack.h"

/// Where the gradients of the backward pass grow, and how they leave.

namespace heed::cpu {

/// Where a tile's dq grows, [64][stride].
struct RowSums {
    float* data;
    std::int64_t stride;
    Old old;  ///< none until the first product is there
};

/// Squares of dk and dv start from 0 when the first tile meets them: then they are in the cache for what follows.
template <class Isa, class Product>
void begin_keys(const Call& call, std::int64_t count, std::int64_t begin, std::int64_t end,
                const BackwardScratch<Isa, Product>& scratch) {
    const BackwardSizes<Isa, Product> z(call);
    for (std::int64_t j = begin / pattern_keys * pattern_keys; j < end; j += pattern_keys) {
        bool& begun = scratch.begun[j / pattern_keys];
        const auto size = static_cast<std::size_t>(smaller(pattern_keys, count - j));
        if (!begun) {
            __builtin_memset(scratch.dk + j * z.head_stride, 0, size * static_cast<std::size_t>(z.head_stride) * 4);
            __builtin_memset(scratch.dv + j * z.value_stride, 0, size * static_cast<std::size_t>(z.value_stride) * 4);
        }
        begun = true;
    }
}

HEED_INLINE float* dq_row(const Call& call, const Sequence& s, std::int64_t g, const RowTile& tile, int r, float* dq) {
    return dq + ((tile.head[r] - g * call.group) * s.queries + tile.index[r]) * call.head_size;
}

/// The tile's rows of dq, set or added to; no `from`: zeros.
template <class Isa, class Product>
void put_dq(const Call& call, const Sequence& s, std::int64_t g, const RowTile& tile, const float* from, Old old,
            float* dq) {
    const BackwardSizes<Isa, Product> z(call);
    const auto bytes = static_cast<std::size_t>(call.head_size) * 4;
    for (int r = 0; r < tile.rows; ++r) {
        float* to = dq_row(call, s, g, tile, r, dq);
        if (old == Old::none && from == nullptr) {
            __builtin_memset(to, 0, bytes);
        } else if (old == Old::none) {
            __builtin_memcpy(to, from + r * z.head_stride, bytes);
        } else if (from != nullptr) {
            for (std::int64_t c = 0; c < call.head_size; ++c) { to[c] += from[r * z.head_stride + c]; }
        }
    }
}

/// Rows [at, at + count) of dk and dv, complete now.
template <class Isa, class Product>
void store_keys(const Call& call, const Sequence& s, std::int64_t g, std::int64_t at, std::int64_t count,
                const BackwardScratch<Isa, Product>& scratch) {
    const BackwardSizes<Isa, Product> z(call);
    begin_keys(call, count, 0, count, scratch);
    const auto store = [&](const Tensor4& to, std::int64_t j, std::int64_t size, const float* from, float factor) {
        const std::int64_t offset = s.batch * to.b + g * to.h + (s.key_begin + at + j) * to.row;
        store_row<Isa>(to.dtype, to.data + offset * element_bytes(to.dtype), to.column, size, from, factor);
    };
    for (std::int64_t j = 0; j < count; ++j) {
        store(call.dk, j, call.head_size, scratch.dk + j * z.head_stride, call.scale);
        store(call.dv, j, call.value_size, scratch.dv + j * z.value_stride, call.kept);
    }
}

/// to[key][row/2] = rows 2n and 2n+1 of each key as bf16.
template <class Isa, int L>
void pair_rows(const RowTile& tile, std::int64_t begin, std::int64_t end, const float* from, float* to) {
    const std::int64_t stride = tile.lanes * tile.vectors;
    for (std::int64_t j = begin; j < end; ++j) {
        const float* row = from + j * stride;
        auto* words = reinterpret_cast<std::uint16_t*>(to + j * stride / 2);
        std::int64_t r = 0;
#if defined(__AVX512BF16__)
        for (; r + 32 <= stride; r += 32) {
            const __m512i both = __m512i(_mm512_cvtne2ps_pbh(_mm512_loadu_ps(row + r + 16), _mm512_loadu_ps(row + r)));
            _mm512_storeu_si512(words + r, both);
        }
        for (; r + 16 <= stride; r += 16) {
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(words + r),
                                __m256i(_mm512_cvtneps_pbh(_mm512_loadu_ps(row + r))));
        }
#endif
        for (; r < stride; ++r) { words[r] = narrow_bf16(row[r]); }
    }
}

/// The three products one element at a time, skipping what is hidden.
template <class Isa, class Product>
void careful_products(const Call& call, const RowTile& tile, const KeyBlock& block, const KeyPanel& panel,
                      std::int64_t offset, RowSums& sums, const BackwardScratch<Isa, Product>& scratch) {
    const BackwardSizes<Isa, Product> z(call);
    const std::int64_t stride = tile.lanes * tile.vectors;
    for (int r = 0; r < tile.rows && sums.old == Old::none; ++r) {
        __builtin_memset(sums.data + r * sums.stride, 0, static_cast<std::size_t>(call.head_size) * 4);
    }
    sums.old = Old::keep;
    const std::int64_t begin = larger<std::int64_t>(tile.begin - block.begin, 0);
    const std::int64_t end = smaller<std::int64_t>(tile.end - block.begin, block.count);
    const auto element = [](const float* rows, std::int64_t row_stride, std::int64_t row, std::int64_t c) {
        if constexpr (Product::depth_per_lane == 2) {
            return widen_bf16(reinterpret_cast<const std::uint16_t*>(rows + row / 2 * row_stride)[2 * c + row % 2]);
        } else {
            return rows[row * row_stride + c];
        }
    };
    for (int r = 0; r < tile.rows; ++r) {
        for (std::int64_t j = begin; j < end; ++j) {
            const float w = scratch.score.scores[j * stride + r];
            if (bits_of(w) == 0x80000000U) { continue; }
            const float dx = scratch.dw[j * stride + r];
            float* dv = scratch.dv + (offset + j) * z.value_stride;
            float* dk = scratch.dk + (offset + j) * z.head_stride;
            float* dq = sums.data + r * sums.stride;
            for (std::int64_t e = 0; e < call.value_size; ++e) {
                dv[e] += w * element(scratch.dout_rows->data, scratch.dout_rows->stride, r, e);
            }
            for (std::int64_t c = 0; c < call.head_size; ++c) {
                dk[c] += dx * element(scratch.q_rows->data, scratch.q_rows->stride, r, c);
                dq[c] += dx * element(panel.k_rows, panel.k_rows_stride, offset + j, c);
            }
        }
    }
}

}  // namespace heed::cpu
