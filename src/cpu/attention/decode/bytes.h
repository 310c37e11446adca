#pragma once
#include "cpu/attention/decode/softmax.h"

/// Decoding's products with keys and values of i8, in whole numbers: a query row, and the weights of 16 keys, become
/// fixed-point numbers of a few bytes, and bytes are multiplied by bytes, 64 at a time. Widened to float instead, four
/// query rows wait for arithmetic, not for memory.

namespace heed::cpu {

template <class Isa>
struct DecodeBytes;

#if defined(__AVX512F__)
// The other functions of the instruction set's file must run without VNNI.
#define HEED_BYTES __attribute__((noinline, target("avx512vnni")))

template <class Isa>
struct DecodeBytes {
    static constexpr int L = 16;
    using S = Simd<Isa, L>;
    using Group = typename DecodeSoftmax<Isa>::Group;
    static constexpr std::int64_t columns = 64;    ///< that go into a register
    static constexpr std::int64_t longest = 1024;  ///< columns whose sums of products fit into 32 bits

    static HEED_INLINE bool takes(std::int64_t head_size, std::int64_t value_size) {
        return head_size % columns == 0 && value_size % columns == 0 && head_size > 0 && head_size <= longest;
    }

    /// q = unit * (256 d1 + d0), digits from -128 to 127: a 32,639th of the row's largest, or a 16,319th in long rows.
    /// Like the weights below, it loses a 256th of what i8 has lost of the keys.
    struct Query {
        const char* row = nullptr;  ///< [2][size], d0 first; floats where they are not finite
        std::uint32_t shift = 0;    ///< 128 times the sum of the whole numbers: keys are read as 128 + k
        float unit = 1;
        bool finite = true;
    };

    /// A row of floats becomes digits, where it lies; `copy` has room for as many floats.
    static Query split_query(std::int64_t size, float* q, float* copy) {
        Query query{reinterpret_cast<const char*>(q)};
        float largest = 1e-30F;
        for (std::int64_t c = 0; c < size; ++c) {
            const float absolute = q[c] < 0 ? -q[c] : q[c];
            query.finite = query.finite && absolute <= 3.4028235e38F;
            largest = larger(largest, absolute);
        }
        if (!query.finite) { return query; }
        // A sum of `size` products of such a number and 127 fits into 32 bits.
        const float most = size <= longest / 2 ? 32639.0F : 16319.0F;
        query.unit = largest / most;
        const float units = most / largest;
        __builtin_memcpy(copy, q, static_cast<std::size_t>(size) * 4);
        auto* digit = reinterpret_cast<std::int8_t*>(q);
        for (std::int64_t c = 0; c < size; ++c) {
            const auto whole = static_cast<std::int32_t>(__builtin_rintf(copy[c] * units));
            const auto d0 = static_cast<std::int8_t>(whole);
            digit[c] = d0;
            digit[size + c] = static_cast<std::int8_t>((whole - d0) / 256);
            query.shift += 128U * static_cast<std::uint32_t>(whole);
        }
        return query;
    }

    /// weights[row + r][n] = q_r . k_n, but for the keys' scales, for R rows; `next`: the rows after these. With the
    /// keys along the lanes no sum runs across them.
    template <int R>
    static HEED_INLINE void scores(const RowRun& k, const char* next, std::int64_t size, const Query* query,
                                   Group& group, int row) {
        if (R == 1 && size <= 2 * columns) {
            scores_of_one(k, size, *query, group.weights[row]);
        } else {
            scores_of_some<R>(k, next, size, query, group, row);
        }
        for (int r = 0; r < R; ++r) {
            if (!query[r].finite) { scores_of_floats(k, size, query[r], group.weights[row + r]); }
        }
    }

    /// sums[r] += weights[row + r] V for R rows, columns in the order of place(). Weights are taken as multiples of a
    /// 65536th of a power of two above the largest of their 16.
    template <int R>
    static HEED_BYTES void add(const RowRun& v, const char* next, std::int64_t size, const Group& group, float* sums,
                               int row) {
        Weights<R> w;
        if (!split_weights(group, row, w)) { return add_floats<R>(v, size, group, sums, row); }
        for (std::int64_t c = 0; c < size; c += columns) {
            __m512i x[4][4];  // of four keys each, 16 columns; four bytes of a lane are of four keys
            HEED_UNROLL
            for (int n = 0; n < 4; ++n) {
                interleave(v.first + 4 * n * v.step + c, v.step, x[n]);
                HEED_UNROLL
                for (int i = 0; i < 4; ++i) {
                    if (R > 1) { ask(next, c / columns * L + 4 * n + i); }
                }
            }
            HEED_UNROLL
            for (int r = 0; r < R; ++r) {
                __m512i sum[4];
                HEED_UNROLL
                for (int i = 0; i < 4; ++i) { sum[i] = _mm512_setzero_si512(); }
                HEED_UNROLL
                for (int d = 1; d >= 0; --d) {
                    HEED_UNROLL
                    for (int n = 0; n < 4; ++n) {
                        const __m512i four = all_four(w.digits[r][d] + 4 * n);
                        HEED_UNROLL
                        for (int i = 0; i < 4; ++i) { sum[i] = _mm512_dpbusd_epi32(sum[i], four, x[n][i]); }
                    }
                    HEED_UNROLL
                    for (int i = 0; i < 4; ++i) { sum[i] = d == 1 ? shifted(sum[i]) : sum[i]; }
                }
                float* to = sums + r * size + c;
                HEED_UNROLL
                for (int i = 0; i < 4; ++i) {
                    S::store(to + i * L, S::load(to + i * L) + to_float(sum[i], 0) * S::all(w.unit[r]));
                }
            }
        }
    }

    /// Where the sum of column c lies.
    static HEED_INLINE std::int64_t place(std::int64_t c) {
        const std::int64_t within = c % columns;
        return c - within + within % 16 / 4 * 16 + within / 16 * 4 + within % 4;
    }

private:
    /// Four short keys at a time, from end to end: then the hardware fetches ahead, and as fast as memory gives; four
    /// long ones, side by side, are slower than prefetched ones. Transposed within quarters of a register only, a
    /// lane belongs to a key and to four columns of the quarter.
    static HEED_BYTES void scores_of_one(const RowRun& k, std::int64_t size, const Query& query, float* scores) {
        for (int j = 0; j < L; j += 4) {
            __m512i sum[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
            for (std::int64_t c = 0; c < size; c += columns) {
                const __m512i flip = _mm512_set1_epi8(-128);
                __m512i x[4];
                HEED_UNROLL
                for (int n = 0; n < 4; ++n) {
                    x[n] = _mm512_xor_si512(_mm512_loadu_si512(k.first + (j + n) * k.step + c), flip);
                }
                const __m512i a = _mm512_unpacklo_epi32(x[0], x[1]);
                const __m512i b = _mm512_unpackhi_epi32(x[0], x[1]);
                const __m512i d = _mm512_unpacklo_epi32(x[2], x[3]);
                const __m512i e = _mm512_unpackhi_epi32(x[2], x[3]);
                HEED_UNROLL
                for (int n = 0; n < 2; ++n) {
                    const __m512i q = _mm512_loadu_si512(query.row + n * size + c);
                    sum[n] = _mm512_dpbusd_epi32(sum[n], _mm512_unpacklo_epi64(a, d), four_times<0x00>(q));
                    sum[n] = _mm512_dpbusd_epi32(sum[n], _mm512_unpackhi_epi64(a, d), four_times<0x55>(q));
                    sum[n] = _mm512_dpbusd_epi32(sum[n], _mm512_unpacklo_epi64(b, e), four_times<0xAA>(q));
                    sum[n] = _mm512_dpbusd_epi32(sum[n], _mm512_unpackhi_epi64(b, e), four_times<0xFF>(q));
                }
            }
            const __m512i all = _mm512_add_epi32(shifted(sum[1]), sum[0]);
            const __m256i half = _mm256_add_epi32(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64(all, 1));
            const __m128i whole =
                _mm_sub_epi32(_mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1)),
                              _mm_set1_epi32(static_cast<std::int32_t>(query.shift)));
            _mm_storeu_ps(scores + j, _mm_mul_ps(_mm_cvtepi32_ps(whole), _mm_set1_ps(query.unit)));
        }
    }

    template <int R>
    static HEED_BYTES void scores_of_some(const RowRun& k, const char* next, std::int64_t size, const Query* query,
                                          Group& group, int row) {
        __m512i sum[R][2];
        HEED_UNROLL
        for (int r = 0; r < R; ++r) { sum[r][0] = sum[r][1] = _mm512_setzero_si512(); }
        const __m512i flip = _mm512_set1_epi8(-128);
        for (std::int64_t c = 0; c < size; c += columns) {
            F<L> x[L];
            HEED_UNROLL
            for (int n = 0; n < L; ++n) {
                x[n] = F<L>(_mm512_xor_si512(_mm512_loadu_si512(k.first + n * k.step + c), flip));
            }
            S::transpose(x);
            HEED_UNROLL
            for (int n = 0; n < L; ++n) {
                ask(next, c / columns * L + n);
                HEED_UNROLL
                for (int r = 0; r < R; ++r) {
                    HEED_UNROLL
                    for (int d = 0; d < 2; ++d) {
                        const __m512i four = all_four(query[r].row + d * size + c + 4 * n);
                        sum[r][d] = _mm512_dpbusd_epi32(sum[r][d], __m512i(x[n]), four);
                    }
                }
            }
        }
        HEED_UNROLL
        for (int r = 0; r < R; ++r) {
            const F<L> whole = to_float(_mm512_add_epi32(shifted(sum[r][1]), sum[r][0]), query[r].shift);
            S::store(group.weights[row + r], whole * S::all(query[r].unit));
        }
    }

    /// For a line of the 16 rows that follow. For several rows of queries keys are read in pieces of a line, not from
    /// end to end, and the hardware does not foresee them: prefetching took decoding with four rows from 4.8 to 2.8 ms,
    /// for rows two or more times as far ahead it took longer again.
    static HEED_INLINE void ask(const char* next, std::int64_t line) {
        asm volatile("prefetcht0 %0" : : "m"(next[line * 64]));
    }
    static HEED_INLINE __m512i all_four(const void* bytes) {
        std::int32_t word;
        __builtin_memcpy(&word, bytes, 4);
        return _mm512_set1_epi32(word);
    }
    static HEED_INLINE F<L> to_float(__m512i sum, std::uint32_t less) {
        return __builtin_convertvector(I<L>(U<L>(sum) - S::all(less)), F<L>);
    }
    /// Number n of each quarter in all four lanes of it; Order: n in each of four places.
    template <int Order>
    static HEED_INLINE __m512i four_times(__m512i x) {
        return _mm512_shuffle_epi32(x, static_cast<_MM_PERM_ENUM>(Order));
    }
    static HEED_INLINE __m512i shifted(__m512i x) { return __m512i(U<L>(x) << 8); }

    template <int R>
    struct Weights {
        alignas(16) std::uint8_t digits[R][2][L];
        alignas(16) float unit[4];
    };
    /// False where some are not finite.
    template <int R>
    static HEED_INLINE bool split_weights(const Group& group, int row, Weights<R>& to) {
        F<L> w[4];
        HEED_UNROLL
        for (int r = 0; r < 4; ++r) { w[r] = S::load(group.weights[row + smaller(r, R - 1)]); }
        const __m128i exponent = _mm_srli_epi32(largest_of_each(w), 23);
        const __m128i kept = _mm_min_epi32(_mm_max_epi32(exponent, _mm_set1_epi32(16)), _mm_set1_epi32(254));
        _mm_store_ps(to.unit, _mm_castsi128_ps(_mm_slli_epi32(_mm_sub_epi32(kept, _mm_set1_epi32(15)), 23)));
        alignas(16) float units[4];
        _mm_store_ps(units, _mm_castsi128_ps(_mm_slli_epi32(_mm_sub_epi32(_mm_set1_epi32(269), kept), 23)));
        HEED_UNROLL
        for (int r = 0; r < R; ++r) {
            const __m512i rounded = _mm512_cvtps_epi32(__m512(w[r] * S::all(units[r])));
            const __m512i whole = _mm512_min_epi32(rounded, _mm512_set1_epi32(65535));
            _mm_store_si128(reinterpret_cast<__m128i*>(to.digits[r][0]), _mm512_cvtepi32_epi8(whole));
            _mm_store_si128(reinterpret_cast<__m128i*>(to.digits[r][1]),
                            _mm512_cvtepi32_epi8(_mm512_srli_epi32(whole, 8)));
        }
        return _mm_movemask_epi8(_mm_cmpgt_epi32(exponent, _mm_set1_epi32(254))) == 0;
    }
    /// Of four rows of weights, which are not negative and so compare as whole numbers do.
    static HEED_INLINE __m128i largest_of_each(const F<L> (&w)[4]) {
        const __m512i a = larger_halves(__m512i(w[0]), __m512i(w[1]));
        const __m512i b = larger_halves(__m512i(w[2]), __m512i(w[3]));
        const __m512i quarters = _mm512_max_epu32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xDD));
        const __m512i pairs = _mm512_max_epu32(quarters, _mm512_shuffle_epi32(quarters, _MM_PERM_BADC));
        const __m512i each = _mm512_max_epu32(pairs, _mm512_shuffle_epi32(pairs, _MM_PERM_CDAB));
        const __m512i first_of_quarters = _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);
        return _mm512_castsi512_si128(_mm512_permutexvar_epi32(first_of_quarters, each));
    }
    static HEED_INLINE __m512i larger_halves(__m512i a, __m512i b) {
        return _mm512_max_epu32(_mm512_shuffle_i32x4(a, b, 0x44), _mm512_shuffle_i32x4(a, b, 0xEE));
    }

    /// Rows a, b, c, d of 64 bytes: four bytes of a lane come from the four rows.
    static HEED_INLINE void interleave(const char* row, std::int64_t step, __m512i (&x)[4]) {
        const __m512i a = _mm512_loadu_si512(row);
        const __m512i b = _mm512_loadu_si512(row + step);
        const __m512i c = _mm512_loadu_si512(row + 2 * step);
        const __m512i d = _mm512_loadu_si512(row + 3 * step);
        const __m512i ab = _mm512_unpacklo_epi8(a, b);
        const __m512i cd = _mm512_unpacklo_epi8(c, d);
        x[0] = _mm512_unpacklo_epi16(ab, cd);
        x[1] = _mm512_unpackhi_epi16(ab, cd);
        const __m512i ab_upper = _mm512_unpackhi_epi8(a, b);
        const __m512i cd_upper = _mm512_unpackhi_epi8(c, d);
        x[2] = _mm512_unpacklo_epi16(ab_upper, cd_upper);
        x[3] = _mm512_unpackhi_epi16(ab_upper, cd_upper);
    }

    /// Infinity and NaN have no digits.
    static __attribute__((noinline)) void scores_of_floats(const RowRun& k, std::int64_t size, const Query& query,
                                                           float* scores) {
        const auto* q = reinterpret_cast<const float*>(query.row);
        for (int n = 0; n < L; ++n) {
            const auto* key = reinterpret_cast<const std::int8_t*>(k.first + n * k.step);
            scores[n] = 0;
            for (std::int64_t c = 0; c < size; ++c) { scores[n] += q[c] * static_cast<float>(key[c]); }
        }
    }
    template <int R>
    static __attribute__((noinline)) void add_floats(const RowRun& v, std::int64_t size, const Group& group,
                                                     float* sums, int row) {
        for (int r = 0; r < R; ++r) {
            for (int n = 0; n < L; ++n) {
                const auto* value = reinterpret_cast<const std::int8_t*>(v.first + n * v.step);
                const float w = group.weights[row + r][n];
                for (std::int64_t c = 0; c < size; ++c) {
                    sums[r * size + place(c)] += w * static_cast<float>(value[c]);
                }
            }
        }
    }
};

#undef HEED_BYTES
#endif

}  // namespace heed::cpu
