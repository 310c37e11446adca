#pragma once
#include "cpu/attention/decode/softmax.h"

/// Decoding's products for one or four query rows and head sizes of 64 and 128: each key and value is read once, from
/// end to end, between few other loads. Then the hardware prefetches by itself, which is faster than prefetching
/// lines by instructions; it does not where part of every row is read, or all of q beside every key.

namespace heed::cpu {

/// Keys and values of NV vectors of floats, N query rows.
template <class Isa, class Rows, int NV, int N>
struct DecodeWholeRows;

#if defined(__AVX512F__)

template <class Isa, class Rows, int NV, int N>
struct DecodeWholeRows {
    static constexpr int L = 16;
    using S = Simd<Isa, L>;
    using Group = typename DecodeSoftmax<Isa>::Group;
    using Product = typename Rows::Product;
    static constexpr bool pairs = Product::depth_per_lane == 2;
    static constexpr int key_vectors = NV / Product::depth_per_lane;
    static_assert(N == 1 || (N == 4 && !pairs));

    /// What passes after the first, which find everything in the first-level cache, prefetch meanwhile: the rows after
    /// these, a few lines of each.
    struct Fetch {
        const char* first;
        std::int64_t step;
        int line, lines;  ///< of each row; none: nothing

        /// For pass n of `passes` over `rows`.
        HEED_INLINE Fetch(const RowRun& rows, int n, int passes)
            : first(rows.first + L * rows.step), step(rows.step), line(0), lines(0) {
            constexpr int all = NV * L * Rows::bytes / 64;
            if (n == 0) { return; }
            const int share = (all + passes - 2) / (passes - 1);
            line = (n - 1) * share;
            lines = smaller(share, larger(all - line, 0));
        }
        /// Stays where it is written: left alone, the compiler moves requests together.
        HEED_INLINE void row(std::int64_t j) const {
            const char* at = first + j * step + line * 64;
            for (int n = 0; n < lines; ++n) { asm volatile("prefetcht1 %0" : : "m"(at[n * 64])); }
        }
    };

    /// x is in a register from here on, not read again with each use.
    static HEED_INLINE F<L> held(F<L> x) {
        asm volatile("" : "+v"(x));
        return x;
    }

    /// weights[row + r][n] = q_r . k_n
    static HEED_INLINE void scores(const RowRun& k, const float* q, Group& group, int row, const Fetch& fetch) {
        if constexpr (N == 1) { return scores_of_one(k, q, group.weights[row]); }
        constexpr int in_registers = smaller(N * NV, 20);  // of q; the rest is read with each key
        F<L> y[in_registers];
        HEED_UNROLL
        for (int n = 0; n < in_registers; ++n) { y[n] = held(S::load(q + n * L)); }
        for (int j = 0; j < L; j += 4) {
            __m512 key[4];  // a quarter of a register for each row
            HEED_UNROLL
            for (int i = 0; i < 4; ++i) {
                const char* from = k.first + (j + i) * k.step;
                fetch.row(j + i);
                F<L> part[N] = {};
                HEED_UNROLL
                for (int n = 0; n < NV; ++n) {
                    const F<L> x = held(Rows::template load<Isa, L>(from, n * L));
                    HEED_UNROLL
                    for (int r = 0; r < N; ++r) {
                        const int at = r * NV + n;
                        part[r] += x * (at < in_registers ? y[at < in_registers ? at : 0] : S::load(q + at * L));
                    }
                }
                const __m512 a = add_halves(part[0], part[1]);
                const __m512 b = add_halves(part[2], part[3]);
                key[i] = __m512(
                    held(F<L>(_mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xDD)))));
            }
            const __m512 a = add_interleaved(key[0], key[2]);
            const __m512 b = add_interleaved(key[1], key[3]);
            const __m512 sums = add_interleaved(a, b);
            _mm_storeu_ps(group.weights[row] + j, _mm512_castps512_ps128(sums));
            _mm_storeu_ps(group.weights[row + 1] + j, _mm512_extractf32x4_ps(sums, 1));
            _mm_storeu_ps(group.weights[row + 2] + j, _mm512_extractf32x4_ps(sums, 2));
            _mm_storeu_ps(group.weights[row + 3] + j, _mm512_extractf32x4_ps(sums, 3));
        }
    }

    /// sums[r] += weights[row + r] V
    static HEED_INLINE void add(const RowRun& v, const Group& group, float* sums, int row, const Fetch& fetch) {
        if constexpr (pairs) { return add_pairs(v, group.pairs[row], sums); }
        // With 32 sums one row of them stays in the first-level cache: there is time to load and store it.
        constexpr int held_rows = N * NV < 32 ? N : N - 1;
        F<L> sum[held_rows][NV];
        HEED_UNROLL
        for (int r = 0; r < held_rows; ++r) {
            HEED_UNROLL
            for (int n = 0; n < NV; ++n) { sum[r][n] = S::load(sums + (r * NV + n) * L); }
        }
        for (int j = 0; j < L; ++j) {
            const char* from = v.first + j * v.step;
            fetch.row(j);
            F<L> w[N];
            HEED_UNROLL
            for (int r = 0; r < N; ++r) { w[r] = S::all(group.weights[row + r][j]); }
            HEED_UNROLL
            for (int n = 0; n < NV; ++n) {
                const F<L> x = held(Rows::template load<Isa, L>(from, n * L));
                HEED_UNROLL
                for (int r = 0; r < held_rows; ++r) { sum[r][n] += x * w[r]; }
                HEED_UNROLL
                for (int r = held_rows; r < N; ++r) {
                    float* at = sums + (r * NV + n) * L;
                    S::store(at, held(S::load(at) + x * w[r]));
                }
            }
        }
        HEED_UNROLL
        for (int r = 0; r < held_rows; ++r) {
            HEED_UNROLL
            for (int n = 0; n < NV; ++n) { S::store(sums + (r * NV + n) * L, sum[r][n]); }
        }
    }

private:
    static HEED_INLINE void scores_of_one(const RowRun& k, const float* q, float* scores) {
        F<L> y[key_vectors];
        HEED_UNROLL
        for (int n = 0; n < key_vectors; ++n) { y[n] = held(S::load(q + n * L)); }
        F<L> sum[L] = {};
        HEED_UNROLL
        for (int j = 0; j < L; ++j) {
            const char* from = k.first + j * k.step;
            HEED_UNROLL
            for (int n = 0; n < key_vectors; ++n) {
                sum[j] = Product::template add<Isa, L>(sum[j], Rows::template load<Isa, L>(from, n * L), y[n]);
            }
            sum[j] = held(sum[j]);
        }
        S::store(scores, sums_of<Isa, L>(sum));
    }
    /// The values of two keys at a time, the sums in the order of Rows::place.
    static HEED_INLINE void add_pairs(const RowRun& v, const float* weights, float* sums) {
        F<L> sum[NV];
        HEED_UNROLL
        for (int n = 0; n < NV; ++n) { sum[n] = S::load(sums + n * L); }
        for (int j = 0; j < L; j += 2) {
            const char* from = v.first + j * v.step;
            const F<L> w = S::all(weights[j / 2]);
            HEED_UNROLL
            for (int n = 0; n < NV; ++n) {
                const F<L> x = Rows::template load_pair<Isa, L>(from, from + v.step, n);
                sum[n] = Product::template add<Isa, L>(sum[n], x, w);
            }
        }
        HEED_UNROLL
        for (int n = 0; n < NV; ++n) { S::store(sums + n * L, sum[n]); }
    }
    /// The halves of a added up, then those of b.
    static HEED_INLINE __m512 add_halves(F<L> a, F<L> b) {
        return _mm512_add_ps(_mm512_shuffle_f32x4(__m512(a), __m512(b), 0x44),
                             _mm512_shuffle_f32x4(__m512(a), __m512(b), 0xEE));
    }
    /// Within quarters: a0 + a2, b0 + b2, a1 + a3, b1 + b3.
    static HEED_INLINE __m512 add_interleaved(__m512 a, __m512 b) {
        return _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    }
};

#endif

}  // namespace heed::cpu
