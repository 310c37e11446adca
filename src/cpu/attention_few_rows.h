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
    const float* k[group];
    HEED_UNROLL
    for (int n = 0; n < group; ++n) { k[n] = block.k + smaller<std::int64_t>(j + n, keys - 1) * block.k_stride; }
    F<L> sum[L] = {};
    for (int n = 0; n < group; ++n) { block.next_v.fetch(j + n, 0, block.next_v.lines); }
    for (std::int64_t c = 0; c < q_stride; c += L) {
        F<L> rows[R];
        HEED_UNROLL
        for (int r = 0; r < R; ++r) { rows[r] = S::load(q + r * q_stride + c); }
        HEED_UNROLL
        for (int n = 0; n < group; ++n) {
            const F<L> key = S::load(k[n] + c);
            HEED_UNROLL
            for (int r = 0; r < R; ++r) {
                sum[n * R + r] = Product::template add<Isa, L>(sum[n * R + r], key, rows[r]);
            }
        }
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

/// sums[r] = alpha[r] sums[r] + weights V for R rows, NV vectors of each row of V at a time.
template <class Isa, class Product, int R, int NV>
HEED_INLINE void few_row_values(const KeyBlock& block, const float* weights, std::int64_t stride, const float* alpha,
                                float* sums, std::int64_t value_stride, int first, int passes, int pass) {
    constexpr int L = Isa::lanes;
    constexpr int d = Product::depth_per_lane;
    using S = Simd<Isa, L>;
    F<L> sum[R][NV];
    HEED_UNROLL
    for (int r = 0; r < R; ++r) {
        HEED_UNROLL
        for (int n = 0; n < NV; ++n) {
            sum[r][n] = S::load(sums + r * value_stride + (first + n) * L) * S::all(alpha[r]);
        }
    }
    // This pass's share of the next block's keys.
    const std::int64_t from = block.next_k.lines * pass / passes;
    const std::int64_t to = block.next_k.lines * (pass + 1) / passes;
    const std::int64_t depth = (block.count + d - 1) / d;
    for (std::int64_t k = 0; k < depth; ++k) {
        for (int n = 0; n < d; ++n) { block.next_k.fetch(k * d + n, from, to); }
        F<L> row[NV];
        HEED_UNROLL
        for (int n = 0; n < NV; ++n) { row[n] = S::load(block.v + k * block.v_stride + (first + n) * L); }
        HEED_UNROLL
        for (int r = 0; r < R; ++r) {
            const F<L> w = S::all(weights[k * stride + r]);
            HEED_UNROLL
            for (int n = 0; n < NV; ++n) { sum[r][n] = Product::template add<Isa, L>(sum[r][n], w, row[n]); }
        }
    }
    HEED_UNROLL
    for (int r = 0; r < R; ++r) {
        HEED_UNROLL
        for (int n = 0; n < NV; ++n) { S::store(sums + r * value_stride + (first + n) * L, sum[r][n]); }
    }
}

/// The product with V for a tile of few rows, over all keys of the block (weights that are not seen are 0).
template <class Isa, class Product>
void few_row_product(const RowTile& tile, const KeyBlock& block, const float* weights, const float* alpha, float* sums,
                     std::int64_t value_stride) {
    const std::int64_t stride = tile.lanes * tile.vectors;
    const auto vectors = static_cast<int>(value_stride / Isa::lanes);
    with_constant<few_rows>(tile.rows, [&]<int R>() {
        constexpr int budget = Isa::registers >= 32 ? 24 : 12;
        constexpr int NV = R * 4 <= budget ? 4 : R * 2 <= budget ? 2 : 1;
        const int passes = (vectors + NV - 1) / NV;
        int first = 0;
        for (int pass = 0; pass < passes; ++pass, first += NV) {
            if (first + NV <= vectors) {
                few_row_values<Isa, Product, R, NV>(block, weights, stride, alpha, sums, value_stride, first, passes,
                                                    pass);
                continue;
            }
            for (int n = first; n < vectors; ++n) {
                few_row_values<Isa, Product, R, 1>(block, weights, stride, alpha, sums, value_stride, n, passes, pass);
            }
        }
    });
}

}  // namespace heed::cpu
