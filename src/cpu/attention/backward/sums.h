#pragma once
#include "cpu/attention/backward/pack.h"

/// Where the gradients of the backward pass are accumulated, and how they are stored.

namespace heed::cpu {

/// Where a tile's dq is accumulated, [64][stride].
struct RowSums {
    float* data;
    std::int64_t stride;
    Old old;  ///< none until the first product is there
};

/// Decides where dk and dv of a panel are accumulated: where they go if they are floats in whole vectors whose rows
/// fall into different cache sets and have no factor to come.
template <class Isa, class Product>
void choose_sums_memory(const Call& call, const Sequence& s, std::int64_t g,
                        const BackwardScratch<Isa, Product>& scratch, KeyPanel& panel) {
    const BackwardSizes<Isa, Product> z(call);
    const auto place = [&](const Tensor4& to, std::int64_t size, std::int64_t stride, float factor, float* own,
                           float*& sums, std::int64_t& sums_stride) {
        const bool direct = to.dtype == DType::f32 && to.column == 1 && size == stride && factor == 1 &&
                            avoids_aliasing(size * 4, to.row * 4);
        const std::int64_t at = s.batch * to.b + g * to.h + (s.key_begin + panel.begin) * to.row;
        sums = direct ? reinterpret_cast<float*>(to.data) + at : own;
        sums_stride = direct ? to.row : stride;
    };
    place(call.dk, call.head_size, z.head_stride, 1, scratch.dk, panel.dk, panel.dk_stride);
    place(call.dv, call.value_size, z.value_stride, call.drop_factor, scratch.dv, panel.dv, panel.dv_stride);
}

/// Keys [begin, end) of the panel are about to be added to dk and dv. Squares that nothing was added to yet are set by
/// the product where it covers them; otherwise they start from 0.
template <class Isa, class Product>
Old begin_keys(const KeyPanel& panel, std::int64_t begin, std::int64_t end, bool from_zero,
               const BackwardSizes<Isa, Product>& z, const BackwardScratch<Isa, Product>& scratch) {
    const std::int64_t first = begin / pattern_keys;
    const std::int64_t last = (end + pattern_keys - 1) / pattern_keys;
    bool covered = !from_zero && begin % pattern_keys == 0 && (end % pattern_keys == 0 || end == panel.count);
    for (std::int64_t n = first; n < last; ++n) { covered = covered && !scratch.filled[n]; }
    for (std::int64_t n = first; n < last; ++n) {
        const std::int64_t square_end = smaller((n + 1) * pattern_keys, panel.count);
        for (std::int64_t j = n * pattern_keys; !covered && !scratch.filled[n] && j < square_end; ++j) {
            __builtin_memset(panel.dk + j * panel.dk_stride, 0, static_cast<std::size_t>(z.head_stride) * 4);
            __builtin_memset(panel.dv + j * panel.dv_stride, 0, static_cast<std::size_t>(z.value_stride) * 4);
        }
        scratch.filled[n] = true;
    }
    return covered ? Old::none : Old::keep;
}

HEED_INLINE float* dq_row(const Call& call, std::int64_t g, const RowTile& tile, int r, const DqPart& dq) {
    return dq.data + (tile.head[r] - g * call.group) * dq.head + tile.index[r] * dq.row;
}

/// The tile's rows of dq, set or added to; no `from`: zeros.
template <class Isa, class Product>
void put_dq(const Call& call, std::int64_t g, const RowTile& tile, const float* from, Old old, const DqPart& dq) {
    const BackwardSizes<Isa, Product> z(call);
    const auto bytes = static_cast<std::size_t>(call.head_size) * 4;
    for (int r = 0; r < tile.rows; ++r) {
        float* to = dq_row(call, g, tile, r, dq);
        if (old == Old::none && from == nullptr) {
            __builtin_memset(to, 0, bytes);
        } else if (old == Old::none) {
            __builtin_memcpy(to, from + r * z.head_stride, bytes);
        } else if (from != nullptr) {
            for (std::int64_t c = 0; c < call.head_size; ++c) { to[c] += from[r * z.head_stride + c]; }
        }
    }
}

/// Row `at` of a gradient, complete now.
template <class Isa>
HEED_INLINE void store_gradient(const Tensor4& to, std::int64_t at, std::int64_t size, const float* from,
                                float factor) {
    char* row = to.data + at * to.element_size;
#if defined(__AVX512BF16__)
    if (to.dtype == DType::bf16 && to.column == 1 && size % 16 == 0) {
        using S = Simd<Isa, 16>;
        for (std::int64_t c = 0; c < size; c += 16) {
            S::store_bf16(reinterpret_cast<float*>(row + c * 2), S::load(from + c) * S::all(factor));
        }
        return;
    }
#endif
    store_row<Isa>(to.dtype, row, to.column, size, from, factor);
}

/// The panel's rows of dk and dv, complete now.
template <class Isa, class Product>
void store_keys(const Call& call, const Sequence& s, std::int64_t g, const KeyPanel& panel,
                const BackwardScratch<Isa, Product>& scratch) {
    const BackwardSizes<Isa, Product> z(call);
    begin_keys(panel, 0, panel.count, true, z, scratch);
    const auto store = [&](const Tensor4& to, std::int64_t size, const float* from, std::int64_t stride, float factor) {
        for (std::int64_t j = 0; j < panel.count; ++j) {
            const std::int64_t at = s.batch * to.b + g * to.h + (s.key_begin + panel.begin + j) * to.row;
            store_gradient<Isa>(to, at, size, from + j * stride, factor);
        }
    };
    if (panel.dk == scratch.dk) { store(call.dk, call.head_size, panel.dk, panel.dk_stride, 1); }
    if (panel.dv == scratch.dv) { store(call.dv, call.value_size, panel.dv, panel.dv_stride, call.drop_factor); }
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
void nan_safe_products(const Call& call, const RowTile& tile, const KeyBlock& block, const KeyPanel& panel,
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
            float* dv = panel.dv + (offset + j) * panel.dv_stride;
            float* dk = panel.dk + (offset + j) * panel.dk_stride;
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
