#pragma once
#include "cpu/attention/backward/pack.h"
#include "cpu/attention/softmax.h"

/// The backward pass's weights and their gradients in the forms that products of bf16 pairs read, made in one pass.

namespace heed::cpu {

/// scores and dw of keys [begin, end) of the block -> w_pairs and dx_pairs [key][row / 2], dx_key_pairs [key / 2][row],
/// 0 where hidden. begin is even. Two vectors of rows and two keys at a time, side by side step by step. Their
/// exponential is rough (exp2_each): rounding to bf16 brings 20 times its error.
template <class Isa, class Product>
class PairGradients {
public:
    static constexpr int L = Isa::lanes;
    using S = Simd<Isa, L>;
    using Scratch = BackwardScratch<Isa, Product>;

    /// Key `first` of the block is the first that `scratch` has scores and dw of.
    HEED_INLINE PairGradients(const RowTile& tile, const KeyBlock& block, float factor, float scale,
                              const Scratch& scratch, std::int64_t first)
        : tile_(tile),
          block_(block),
          stride_(L * tile.vectors),
          scores_(scratch.score.scores - first * stride_),
          dw_(scratch.dw - first * stride_),
          lse_(scratch.lse),
          lse_rest_(scratch.lse_rest),
          delta_(scratch.delta),
          keep_mask_(scratch.keep_mask),
          w_pairs_(scratch.w_pairs),
          dx_pairs_(scratch.dx_pairs),
          dx_key_pairs_(scratch.dx_key_pairs),
          factor_(S::all(factor)),
          scale_(S::all(scale)) {}

    template <bool Partial, bool Dropping>
    HEED_NOINLINE void keys(std::int64_t begin, std::int64_t end) const {
        int n = 0;
        for (; n + 2 <= tile_.vectors; n += 2) { vectors<2, Partial, Dropping>(n, begin, end); }
        if (n < tile_.vectors) { vectors<1, Partial, Dropping>(n, begin, end); }
        // The partner of an odd last row must not bring a NaN along.
        for (std::int64_t j = begin; tile_.rows % 2 != 0 && j < end; ++j) {
            for (float* pairs : {w_pairs_, dx_pairs_}) {
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
        const PairGradients own = *this;  // in registers: stores might change what `this` points to
        Rows rows[Count];
        std::int64_t whole_begin = first;
        std::int64_t whole_end = last;
        HEED_UNROLL
        for (int c = 0; c < Count; ++c) {
            rows[c] = {larger<std::int64_t>(tile_.some_begin[n + c] - block_.begin, 0),
                       smaller<std::int64_t>(tile_.some_end[n + c] - block_.begin, block_.count),
                       S::load(lse_ + (n + c) * L), S::load(lse_rest_ + (n + c) * L), S::load(delta_ + (n + c) * L)};
            whole_begin = larger(whole_begin, (rows[c].begin + 1) / 2 * 2);
            whole_end = smaller(whole_end, rows[c].end);
        }
        const auto edges = [&](std::int64_t j, std::int64_t end) HEED_INLINE_LAMBDA {
            for (; j < end; j += 2) {
                F<L> w[2][Count] = {}, dx[2][Count] = {};
                for (int key = 0; key < 2; ++key) {
                    for (int c = 0; c < Count; ++c) {
                        if (j + key < rows[c].begin || j + key >= rows[c].end) { continue; }
                        F<L> one_w[1][1], one_dx[1][1];
                        own.template gradients<1, 1, Partial, Dropping>(rows + c, n + c, j + key, one_w, one_dx);
                        w[key][c] = one_w[0][0];
                        dx[key][c] = one_dx[0][0];
                    }
                }
                own.template put<Count>(n, j, w, dx);
            }
        };
        std::int64_t j = smaller(whole_begin, (last + 1) / 2 * 2);
        edges(first, j);
        for (; j + 2 <= whole_end; j += 2) {
            F<L> w[2][Count], dx[2][Count];
            own.template gradients<2, Count, Partial, Dropping>(rows, n, j, w, dx);
            own.template put<Count>(n, j, w, dx);
        }
        edges(j, last);
    }

    /// w and dx of keys j .. j + Keys and vectors n .. n + Count.
    template <int Keys, int Count, bool Partial, bool Dropping>
    HEED_INLINE void gradients(const Rows* rows, int n, std::int64_t j, F<L> (&w)[Keys][Count],
                               F<L> (&dx)[Keys][Count]) const {
        F<L> power[Keys * Count];
        const auto at = [&](int m) HEED_INLINE_LAMBDA { return (j + m / Count) * stride_ + (n + m % Count) * L; };
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
            if constexpr (Dropping) { weight *= S::load(keep_mask_ + at(m)); }
            if constexpr (Partial) {
                const auto hidden = S::load(scores_ + at(m)) == S::all(negative_infinity);
                weight = hidden ? F<L>{} : weight;
                slope = hidden ? F<L>{} : slope;
            }
        }
    }

    /// A last key without a partner has one of zeros.
    template <int Count>
    HEED_INLINE void put(int n, std::int64_t j, const F<L> (&w)[2][Count], const F<L> (&dx)[2][Count]) const {
        const std::int64_t at = j * stride_ / 2 + n * (L / 2);
        float* by_key = dx_key_pairs_ + j / 2 * stride_ + n * L;
#if defined(__AVX512BF16__)
        if constexpr (Count == 2) {
            __m512i rows[2];
            HEED_UNROLL
            for (int key = 0; key < 2; ++key) {
                _mm512_storeu_si512(w_pairs_ + at + key * stride_ / 2, bf16(w[key][0], w[key][1]));
                rows[key] = bf16(dx[key][0], dx[key][1]);
                _mm512_storeu_si512(dx_pairs_ + at + key * stride_ / 2, rows[key]);
            }
            interleave_words<Isa>(rows[0], rows[1], by_key);
            return;
        }
#endif
        HEED_UNROLL
        for (int c = 0; c < Count; ++c) {
            for (int key = 0; key < 2; ++key) {
                S::store_bf16(w_pairs_ + at + key * stride_ / 2 + c * (L / 2), w[key][c]);
                S::store_bf16(dx_pairs_ + at + key * stride_ / 2 + c * (L / 2), dx[key][c]);
            }
            S::store(by_key + c * L, S::pair_bf16(dx[0][c], dx[1][c]));
        }
    }

#if defined(__AVX512BF16__)
    static HEED_INLINE __m512i bf16(F<L> a, F<L> b) { return __m512i(_mm512_cvtne2ps_pbh(__m512(b), __m512(a))); }
#endif

    const RowTile& tile_;
    const KeyBlock& block_;
    std::int64_t stride_;
    const float* scores_;
    const float* dw_;
    const float* lse_;
    const float* lse_rest_;
    const float* delta_;
    const float* keep_mask_;
    float* w_pairs_;
    float* dx_pairs_;
    float* dx_key_pairs_;
    F<L> factor_, scale_;
};

}  // namespace heed::cpu
