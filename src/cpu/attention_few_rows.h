#pragma once
#include "cpu/attention_pack.h"

/// Scores of a tile of at most eight rows (decoding): the lanes run along the head, so that each key is read once, as
/// whole vectors, in order, which is what memory likes.

namespace heed::cpu {

constexpr int reversed_bits(int n, int width) {
    int result = 0;
    for (int bit = 1; bit < width; bit *= 2) {
        result = 2 * result + n % 2;
        n /= 2;
    }
    return result;
}

/// Lane n of the result is the sum over the lanes of x[n].
template <class Isa, int L>
HEED_INLINE F<L> sums_of(F<L> (&x)[L]) {
    F<L> y[L];
    HEED_UNROLL
    for (int n = 0; n < L; ++n) { y[n] = x[reversed_bits(n, L)]; }
    HEED_UNROLL
    for (int count = L / 2; count > 0; count /= 2) {
        HEED_UNROLL
        for (int n = 0; n < count; ++n) { y[n] = Simd<Isa, L>::add_halves(y[2 * n], y[2 * n + 1]); }
    }
    return y[0];
}

/// scores[key][row] for keys in groups of L/R, R rows (a power of two, padded with zero rows).
template <class Isa, class Product, int R>
HEED_INLINE void few_row_group(const KeyBlock& block, std::int64_t j, std::int64_t keys, const float* q,
                               std::int64_t q_stride, float* scores, std::int64_t stride) {
    constexpr int L = Isa::lanes;
    constexpr int group = L / R;
    using S = Simd<Isa, L>;
    // One key after the other, each from end to end: the order in which the hardware fetches ahead.
    F<L> sum[L];
    HEED_UNROLL
    for (int n = 0; n < group; ++n) {
        const float* k = block.k + smaller<std::int64_t>(j + n, keys - 1) * block.k_stride;
        F<L> part[R] = {};
        for (std::int64_t c = 0; c < q_stride; c += L) {
            const F<L> key = S::load(k + c);
            HEED_UNROLL
            for (int r = 0; r < R; ++r) {
                part[r] = Product::template add<Isa, L>(part[r], key, S::load(q + r * q_stride + c));
            }
        }
        HEED_UNROLL
        for (int r = 0; r < R; ++r) { sum[n * R + r] = part[r]; }
    }
    float result[L];
    S::store(result, sums_of<Isa, L>(sum));
    const std::int64_t count = smaller<std::int64_t>(group, keys - j);
    for (std::int64_t n = 0; n < count; ++n) {
        HEED_UNROLL
        for (int r = 0; r < R; ++r) { scores[(j + n) * stride + r] = result[n * R + r]; }
    }
}

template <class Isa, class Product>
void few_row_scores(const RowTile& tile, const KeyBlock& block, const float* q, std::int64_t q_stride, float* scores) {
    const std::int64_t stride = tile.lanes * tile.vectors;
    const auto run = [&]<int R>(std::int64_t first) {
        for (std::int64_t j = 0; j < block.count; j += Isa::lanes / R) {
            few_row_group<Isa, Product, R>(block, j, block.count, q + first * q_stride, q_stride, scores + first,
                                           stride);
        }
    };
    // The fewest rows that hold them all; where a vector has four lanes, four at a time.
    const int rows = tile.rows;
    if (rows == 1) {
        run.template operator()<1>(0);
    } else if (rows == 2) {
        run.template operator()<2>(0);
    } else if (rows <= 4 || Isa::lanes < 8) {
        for (std::int64_t first = 0; first < rows; first += 4) { run.template operator()<4>(first); }
    } else if constexpr (Isa::lanes >= 8) {
        run.template operator()<8>(0);
    }
    // Lanes past the rows are not read from memory: give them a number.
    for (std::int64_t j = 0; j < block.count; ++j) {
        for (std::int64_t r = rows <= 2 ? rows : round_up(rows, 4); r < stride; ++r) { scores[j * stride + r] = 0; }
    }
}

/// sums[r] += weights V for R rows and NV vectors over entries [begin, end) of V.
template <class Isa, class Product, int R, int NV>
HEED_INLINE void few_row_values(const KeyBlock& block, const float* weights, std::int64_t stride, std::int64_t begin,
                                std::int64_t end, float* sums, std::int64_t value_stride, int first) {
    constexpr int L = Isa::lanes;
    using S = Simd<Isa, L>;
    F<L> sum[R][NV];
    HEED_UNROLL
    for (int r = 0; r < R; ++r) {
        HEED_UNROLL
        for (int n = 0; n < NV; ++n) { sum[r][n] = S::load(sums + r * value_stride + (first + n) * L); }
    }
    for (std::int64_t k = begin; k < end; ++k) {
        F<L> w[R];
        HEED_UNROLL
        for (int r = 0; r < R; ++r) { w[r] = S::all(weights[k * stride + r]); }
        HEED_UNROLL
        for (int n = 0; n < NV; ++n) {
            const F<L> row = S::load(block.v + k * block.v_stride + (first + n) * L);
            HEED_UNROLL
            for (int r = 0; r < R; ++r) { sum[r][n] = Product::template add<Isa, L>(sum[r][n], w[r], row); }
        }
    }
    HEED_UNROLL
    for (int r = 0; r < R; ++r) {
        HEED_UNROLL
        for (int n = 0; n < NV; ++n) { S::store(sums + r * value_stride + (first + n) * L, sum[r][n]); }
    }
}

/// sums = alpha sums + weights V for a tile of few rows, over all keys of the block (weights that are not seen are 0).
/// A few rows of V at a time, each from end to end, stay in the first-level cache for all rows of the tile.
template <class Isa, class Product>
void few_row_product(const RowTile& tile, const KeyBlock& block, const float* weights, const float* alpha, float* sums,
                     std::int64_t value_stride) {
    constexpr int d = Product::depth_per_lane;
    constexpr int widest = Isa::registers >= 32 ? 8 : 4;
    const std::int64_t stride = tile.lanes * tile.vectors;
    const auto vectors = static_cast<int>(value_stride / Isa::lanes);
    for (int r = 0; r < tile.rows; ++r) {
        for (std::int64_t e = 0; e < value_stride; ++e) { sums[r * value_stride + e] *= alpha[r]; }
    }
    const std::int64_t depth = (block.count + d - 1) / d;
    constexpr std::int64_t at_once = 16;
    for (std::int64_t k = 0; k < depth; k += at_once) {
        const std::int64_t end = smaller(depth, k + at_once);
        for (int first = 0; first < vectors; first += widest) {
            with_constant<widest>(smaller(widest, vectors - first), [&]<int NV>() {
                constexpr int R = NV > widest / 2 ? 2 : 4;
                for (int r = 0; r < tile.rows; r += R) {
                    with_constant<R>(smaller(R, tile.rows - r), [&]<int Rows>() {
                        few_row_values<Isa, Product, Rows, NV>(block, weights + r, stride, k, end,
                                                               sums + r * value_stride, value_stride, first);
                    });
                }
            });
        }
    }
}

}  // namespace heed::cpu
