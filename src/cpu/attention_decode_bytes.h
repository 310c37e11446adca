#pragma once
#include "cpu/attention_decode_softmax.h"

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
    static HEED_BYTES void scores(const RowRun& k, const char* next, std::int64_t size, const Query* query,
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
                weave(v.first + 4 * n * v.step + c, v.step, x[n]);
                HEED_UNROLL
                for (int i = 0; i < 4; ++i) { ask(next, c / columns * L + 4 * n + i); }
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
                    for (int i = 0; i < 4 && d == 1; ++i) { sum[i] = shifted(sum[i]); }
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
    /// For a line of the 16 rows that follow. These rows are read in pieces of a line, not from end to end, and the
    /// hardware does not see where they go: asking took decoding with four rows from 4.8 to 2.8 ms, for rows two or
    /// more times as far ahead it took longer again.
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
    static HEED_INLINE __m512i shifted(__m512i x) { return __m512i(U<L>(x) << 8); }

    template <int R>
    struct Weights {
        alignas(16) std::uint8_t digits[R][2][L];
        float unit[R];
    };
    /// False where some are not finite.
    template <int R>
    static HEED_INLINE bool split_weights(const Group& group, int row, Weights<R>& to) {
        bool finite = true;
        HEED_UNROLL
        for (int r = 0; r < R; ++r) {
            const F<L> w = S::load(group.weights[row + r]);
            // Weights are not negative: they compare as whole numbers do.
            const std::uint32_t largest = _mm512_reduce_max_epu32(__m512i(w)) >> 23;
            finite = finite && largest < 255;
            const std::uint32_t exponent = smaller<std::uint32_t>(larger<std::uint32_t>(largest, 16), 254);
            to.unit[r] = __builtin_bit_cast(float, (exponent - 15) << 23);
            const F<L> units = w * S::all(__builtin_bit_cast(float, (269 - exponent) << 23));
            const __m512i whole = _mm512_min_epi32(_mm512_cvtps_epi32(__m512(units)), _mm512_set1_epi32(65535));
            _mm_store_si128(reinterpret_cast<__m128i*>(to.digits[r][0]), _mm512_cvtepi32_epi8(whole));
            _mm_store_si128(reinterpret_cast<__m128i*>(to.digits[r][1]),
                            _mm512_cvtepi32_epi8(_mm512_srli_epi32(whole, 8)));
        }
        return finite;
    }

    /// Rows a, b, c, d of 64 bytes: four bytes of a lane come from the four rows.
    static HEED_INLINE void weave(const char* row, std::int64_t step, __m512i (&x)[4]) {
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
