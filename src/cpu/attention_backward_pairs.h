#pragma once
#include "cpu/attention_backward_pack.h"
#include "cpu/attention_softmax.h"

/// The backward pass's weights and their gradients in the forms that products of bf16 pairs read, made in one pass.

#if defined(__AVX512BF16__)
namespace heed::cpu {

/// scores and dw of keys [begin, end) of the block -> w_pairs and dx_pairs [key][row / 2], dx_key_pairs [key / 2][row],
/// 0 where hidden. begin is even. Two vectors of rows and two keys at a time, side by side step by step. Their
/// exponential is rough (exp2_each): rounding to bf16 brings 20 times its error.
template <class Isa>
class PairGradients {
public:
    static constexpr int L = Isa::lanes;
    using S = Simd<Isa, L>;
    using Scratch = BackwardScratch<Isa, Bf16Product>;

    /// Key `first` of the block is the first that `scratch` has scores and dw of.
    HEED_INLINE PairGradients(const RowTile& tile, const KeyBlock& block, float factor, float scale,
                              const Scratch& scratch, std::int64_t first)
        : tile_(tile),
          block_(block),
          stride_(L * tile.vectors),
          scratch_(scratch),
          scores_(scratch.score.scores - first * stride_),
          dw_(scratch.dw - first * stride_),
          factor_(S::all(factor)),
          scale_(S::all(scale)) {}

    template <bool Partial, bool Dropping>
    HEED_APART void keys(std::int64_t begin, std::int64_t end) const {
        int n = 0;
        for (; n + 2 <= tile_.vectors; n += 2) { vectors<2, Partial, Dropping>(n, begin, end); }
        if (n < tile_.vectors) { vectors<1, Partial, Dropping>(n, begin, end); }
        // The partner of an odd last row must not bring a NaN along.
        for (std::int64_t j = begin; tile_.rows % 2 != 0 && j < end; ++j) {
            for (float* pairs : {scratch_.w_pairs, scratch_.dx_pairs}) {
                reinterpret_cast<std::uint16_t*>(pairs + j * stride_ / 2)[tile_.rows] = 0;
            }
        }
    }

private:
    /// What stays the same for a vector of rows.
    struct Rows {
        std::int64_t begin, end;  ///< keys it sees
        F<L> lse, rest, delta;
    };

    template <int Count, bool Partial, bool Dropping>
    HEED_INLINE void vectors(int n, std::int64_t first, std::int64_t last) const {
        Rows rows[Count];
        std::int64_t whole_begin = first;
        std::int64_t whole_end = last;
        HEED_UNROLL
        for (int c = 0; c < Count; ++c) {
            rows[c] = {larger<std::int64_t>(tile_.some_begin[n + c] - block_.begin, 0),
                       smaller<std::int64_t>(tile_.some_end[n + c] - block_.begin, block_.count),
                       S::load(scratch_.lse + (n + c) * L), S::load(scratch_.lse_rest + (n + c) * L),
                       S::load(scratch_.delta + (n + c) * L)};
            whole_begin = larger(whole_begin, (rows[c].begin + 1) / 2 * 2);
            whole_end = smaller(whole_end, rows[c].end);
        }
        const auto edges = [&](std::int64_t j, std::int64_t end) {
            for (; j < end; j += 2) {
                F<L> w[2][Count] = {}, dx[2][Count] = {};
                for (int key = 0; key < 2; ++key) {
                    for (int c = 0; c < Count; ++c) {
                        if (j + key < rows[c].begin || j + key >= rows[c].end) { continue; }
                        F<L> one_w[1][1], one_dx[1][1];
                        gradients<1, 1, Partial, Dropping>(rows + c, n + c, j + key, one_w, one_dx);
                        w[key][c] = one_w[0][0];
                        dx[key][c] = one_dx[0][0];
                    }
                }
                put<Count>(n, j, last, w, dx);
            }
        };
        std::int64_t j = smaller(whole_begin, (last + 1) / 2 * 2);
        edges(first, j);
        for (; j + 2 <= whole_end; j += 2) {
            F<L> w[2][Count], dx[2][Count];
            gradients<2, Count, Partial, Dropping>(rows, n, j, w, dx);
            put<Count>(n, j, last, w, dx);
        }
        edges(j, last);
    }

    /// w and dx of keys j .. j + Keys and vectors n .. n + Count.
    template <int Keys, int Count, bool Partial, bool Dropping>
    HEED_INLINE void gradients(const Rows* rows, int n, std::int64_t j, F<L> (&w)[Keys][Count],
                               F<L> (&dx)[Keys][Count]) const {
        F<L> power[Keys * Count];
        const auto at = [&](int m) { return (j + m / Count) * stride_ + (n + m % Count) * L; };
        HEED_UNROLL
        for (int m = 0; m < Keys * Count; ++m) {
            const Rows& row = rows[m % Count];
            power[m] = (S::load(scores_ + at(m)) * factor_ - row.lse) - row.rest;
        }
        S::template exp2_each<true>(power);
        HEED_UNROLL
        for (int m = 0; m < Keys * Count; ++m) {
            // The difference first: where dw and delta are equal they cancel.
            const F<L> difference = S::load(dw_ + at(m)) - rows[m % Count].delta;
            F<L>& weight = w[m / Count][m % Count];
            F<L>& slope = dx[m / Count][m % Count];
            weight = power[m];
            slope = weight * scale_ * difference;
            if constexpr (Dropping) { weight *= S::load(scratch_.kept + at(m)); }
            if constexpr (Partial) {
                const auto hidden = S::load(scores_ + at(m)) == S::all(negative_infinity);
                weight = hidden ? F<L>{} : weight;
                slope = hidden ? F<L>{} : slope;
            }
        }
    }

    template <int Count>
    HEED_INLINE void put(int n, std::int64_t j, std::int64_t last, const F<L> (&w)[2][Count],
                         const F<L> (&dx)[2][Count]) const {
        HEED_UNROLL
        for (int key = 0; key < 2; ++key) {
            if (j + key >= last) { break; }
            const std::int64_t at = (j + key) * stride_ / 2 + n * (L / 2);
            put_rows<Count>(scratch_.w_pairs + at, w[key]);
            put_rows<Count>(scratch_.dx_pairs + at, dx[key]);
        }
        HEED_UNROLL
        for (int c = 0; c < Count; ++c) {
            S::store(scratch_.dx_key_pairs + j / 2 * stride_ + (n + c) * L, S::pair_bf16(dx[0][c], dx[1][c]));
        }
    }

    /// Count vectors of one key as bf16, one after the other.
    template <int Count>
    static HEED_INLINE void put_rows(float* to, const F<L> (&x)[Count]) {
        if constexpr (Count == 2) {
            const __m512bh both = _mm512_cvtne2ps_pbh(__m512(x[1]), __m512(x[0]));
            __builtin_memcpy(to, &both, sizeof(both));
        } else {
            S::store_bf16(to, x[0]);
        }
    }

    const RowTile& tile_;
    const KeyBlock& block_;
    std::int64_t stride_;
    const Scratch& scratch_;
    const float* scores_;
    const float* dw_;
    F<L> factor_, scale_;
};

}  // namespace heed::cpu
#endif
