#pragma once
#include "cpu/attention/call.h"
#include "cpu/matmul/gemm.h"
#include "cpu/simd/convert.h"

/// Steps 1 to 4 of attention for a tile of query rows and a block of keys, transposed: lanes run along the rows, so
/// that the softmax needs no work across lanes. Scores are in powers of two (times log2 e).

namespace heed::cpu {

/// A block of keys made ready for the products.
struct KeyBlock {
    std::int64_t begin = 0;  ///< index of its first key
    std::int64_t count = 0;
    const float* k = nullptr;  ///< [count][k_stride] rows (float, or pairs of bf16)
    std::int64_t k_stride = 0;
    const float* v = nullptr;  ///< [count][v_stride] rows, or [count/2] rows of pairs
    std::int64_t v_stride = 0;
    const std::int32_t* positions = nullptr;
    std::int32_t least = 0, most = 0;
    int values_finite = -1;  ///< -1: not yet looked

    /// Keys [from, to) of it, even numbers or the end.
    template <class Product>
    HEED_INLINE KeyBlock part(std::int64_t from, std::int64_t to) const {
        KeyBlock keys = *this;
        keys.begin += from;
        keys.count = to - from;
        keys.k += from * k_stride;
        keys.v += from / Product::depth_per_lane * v_stride;
        keys.positions += from;
        return keys;
    }

    HEED_INLINE bool seen_by_all(const RowTile& tile) const {
        bool all = true;
        for (int n = 0; n < tile.vectors; ++n) {
            all = all && tile.all_begin[n] <= begin && tile.all_end[n] >= begin + count;
        }
        return all;
    }
};

/// Scratch for scores of a tile: one of these a worker.
struct ScoreScratch {
    float* scores;            ///< [keys][stride]
    float* rows;              ///< [64][keys] bias and mask, where they cannot be read where they lie
    std::int32_t* positions;  ///< [keys]
};

/// tanh y where z = y * y is at most small_square: relative error 4e-8 before rounding.
constexpr float small_square = 0.12F;
template <class Isa, int L>
HEED_INLINE F<L> tanh_of_small(F<L> y, F<L> z) {
    using S = Simd<Isa, L>;
    F<L> p = S::all(-4.924069356e-02F);
    p = p * z + S::all(1.330112323e-01F);
    p = p * z + S::all(-3.333270215e-01F);
    return y + y * (z * p);
}

/// Odd polynomials below 0.8, exponential above. Relative error about 2e-7.
template <class Isa, int L>
HEED_INLINE F<L> tanh(F<L> y) {
    using S = Simd<Isa, L>;
    const F<L> z = y * y;
    F<L> p = S::all(1.584755999e-03F);
    p = p * z + S::all(-7.409557000e-03F);
    p = p * z + S::all(2.130299083e-02F);
    p = p * z + S::all(-5.385233157e-02F);
    p = p * z + S::all(1.333222103e-01F);
    p = p * z + S::all(-3.333329736e-01F);
    const F<L> medium = y + y * (z * p);
    const F<L> small = z <= S::all(small_square) ? tanh_of_small<Isa, L>(y, z) : medium;
    const auto is_small = z <= S::all(0.64F);
    if (S::every(is_small)) { return small; }
    // 1 - 2/(e^2|y| + 1), with the sign of y; y beyond 10 is 1 in float32.
    const F<L> magnitude = S::min(S::all(10.0F), S::max(y, -y));
    const F<L> e = S::exp2(magnitude * S::all(2.8853900818F));
    const F<L> large = S::all(1.0F) - S::all(2.0F) / (e + S::all(1.0F));
    const F<L> with_sign = y < S::all(0.0F) ? -large : large;
    return is_small ? small : (y == y ? with_sign : y);
}

/// y = tanh y for G vectors, the same bits; quick while all are small, as scores well under the cap are.
template <class Isa, int L, int G>
HEED_INLINE void tanh_each(F<L> (&y)[G]) {
    using S = Simd<Isa, L>;
    F<L> z[G];
    HEED_UNROLL
    for (int g = 0; g < G; ++g) { z[g] = y[g] * y[g]; }
    // As integers squares compare like floats, and a NaN cannot hide another vector's number.
    I<L> most = I<L>(z[0]);
    HEED_UNROLL
    for (int g = 1; g < G; ++g) { most = I<L>(z[g]) > most ? I<L>(z[g]) : most; }
    const bool quick = S::every(most <= I<L>(S::all(small_square)));
    HEED_UNROLL
    for (int g = 0; g < G; ++g) { y[g] = quick ? tanh_of_small<Isa, L>(y[g], z[g]) : tanh<Isa, L>(y[g]); }
}

/// Vectors [first, last) of the tile that see some of keys [begin, end), by index.
HEED_INLINE void vectors_seeing(const RowTile& tile, std::int64_t begin, std::int64_t end, int& first, int& last) {
    first = tile.vectors;
    last = 0;
    for (int n = 0; n < tile.vectors; ++n) {
        if (tile.some_begin[n] < end && tile.some_end[n] > begin) {
            first = smaller(first, n);
            last = n + 1;
        }
    }
}

/// Step 1: scores[key][row] = q . k for the keys and vectors that have something to see.
template <class Isa, class Product, int L, class Fused = NothingFused>
HEED_NOINLINE void raw_scores(const RowTile& tile, const KeyBlock& block, const float* q, std::int64_t depth,
                              float* scores, Fused&& fused = {}) {
    const std::int64_t stride = tile.lanes * tile.vectors;
    const std::int64_t end = block.begin + block.count;
    // On a diagonal the keys fall into runs, each seen by the same vectors.
    for (std::int64_t j = block.begin; j < end;) {
        std::int64_t next = end;
        for (int n = 0; n < tile.vectors; ++n) {
            if (tile.some_begin[n] > j) { next = smaller<std::int64_t>(next, tile.some_begin[n]); }
            if (tile.some_end[n] > j) { next = smaller<std::int64_t>(next, tile.some_end[n]); }
        }
        int first = 0;
        int last = 0;
        vectors_seeing(tile, j, next, first, last);
        if (first < last) {
            const std::int64_t at = j - block.begin;
            matrix_set<Isa, Product, L, Walk::along_row>(block.k + at * block.k_stride, block.k_stride, q + first * L,
                                                         stride, depth, scores + at * stride + first * L, stride,
                                                         next - j, last - first, nullptr, fused);
        }
        j = next;
    }
}

/// What the second pass needs to know of the first.
struct Scored {
    float factor;  ///< scores still to be multiplied by this
    bool partial;  ///< something in the tile is hidden, and is -infinity now
};

/// Is there nothing to do between the product and the softmax, for this tile and block?
HEED_INLINE bool is_plain(const Call& call, const RowTile& tile, const KeyBlock& block, Cover pattern) {
    return !(call.cap > 0) && !call.alibi && call.factor > 0 && call.bias.data == nullptr &&
           call.allow.data == nullptr && pattern == Cover::all && block.seen_by_all(tile);
}

/// Steps 1 to 4 of a plain tile: the largest score falls out of the product. largest[row] is raised.
template <class Isa, class Product, int L>
Scored plain_scores(const Call& call, const RowTile& tile, const KeyBlock& block, const float* q, std::int64_t depth,
                    float* scores, float* largest) {
    using S = Simd<Isa, L>;
    const std::int64_t stride = tile.lanes * tile.vectors;
    float most[most_rows];
    for (std::int64_t r = 0; r < stride; ++r) { most[r] = negative_infinity; }
    matrix_set<Isa, Product, L, Walk::along_row>(block.k, block.k_stride, q, stride, depth, scores, stride, block.count,
                                                 tile.vectors, most);
    for (int n = 0; n < tile.vectors; ++n) {
        const F<L> scaled = S::rounded(S::load(most + n * L) * S::all(call.factor));
        S::store(largest + n * L, S::max(scaled, S::load(largest + n * L)));
    }
    return {.factor = call.factor, .partial = false};
}

}  // namespace heed::cpu
