#pragma once
/// Vectors of float, 32 bits a lane, on GCC and Clang vector extensions. Each file of isa/ compiles this for one
/// instruction set; everything is a template over the set's tag, so that no two files share a symbol.
/// Only what the extensions cannot say well is written with intrinsics.

#include <cstddef>
#include <cstdint>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define HEED_INLINE inline __attribute__((always_inline))
/// Not inlined: in its callers, whose variables would take registers from its loops.
#define HEED_NOINLINE __attribute__((noinline))
#define HEED_UNROLL _Pragma("GCC unroll 32")

namespace heed::cpu {

template <int L>
struct VectorTypes {
    typedef float F __attribute__((vector_size(4 * L)));
    typedef std::int32_t I __attribute__((vector_size(4 * L)));
    typedef std::uint32_t U __attribute__((vector_size(4 * L)));
};
template <int L>
using F = typename VectorTypes<L>::F;
template <int L>
using I = typename VectorTypes<L>::I;
template <int L>
using U = typename VectorTypes<L>::U;

/// The operations, for an instruction set `Isa` and L lanes.
template <class Isa, int L>
struct Simd {
    using V = F<L>;
    using W = I<L>;
    using Word = U<L>;

    static HEED_INLINE V load(const float* from) {
        V v;
        __builtin_memcpy(&v, from, sizeof(v));
        return v;
    }
    static HEED_INLINE W load(const std::int32_t* from) {
        W v;
        __builtin_memcpy(&v, from, sizeof(v));
        return v;
    }
    static HEED_INLINE void store(float* to, V v) { __builtin_memcpy(to, &v, sizeof(v)); }
    static HEED_INLINE void store(std::int32_t* to, W v) { __builtin_memcpy(to, &v, sizeof(v)); }
    static HEED_INLINE V all(float x) { return all_of<V>(x, std::make_index_sequence<L>{}); }
    static HEED_INLINE W all(std::int32_t x) { return all_of<W>(x, std::make_index_sequence<L>{}); }
    static HEED_INLINE Word all(std::uint32_t x) { return all_of<Word>(x, std::make_index_sequence<L>{}); }

    /// a > b ? a : b, that is b where either is NaN.
    static HEED_INLINE V max(V a, V b) {
#if defined(__AVX512F__)
        if constexpr (L == 16) { return V(_mm512_max_ps(__m512(a), __m512(b))); }
#endif
#if defined(__AVX2__)
        if constexpr (L == 8) { return V(_mm256_max_ps(__m256(a), __m256(b))); }
#endif
#if defined(__x86_64__)
        if constexpr (L == 4) { return V(_mm_max_ps(__m128(a), __m128(b))); }
#endif
        return a > b ? a : b;
    }
    static HEED_INLINE V min(V a, V b) { return -max(-a, -b); }

    /// x, rounded to float here and now: a product that goes through this is not fused with what follows.
    static HEED_INLINE V rounded(V x) {
#if defined(__AVX512F__)
        asm("" : "+v"(x));
#elif defined(__x86_64__)
        asm("" : "+x"(x));
#elif defined(__aarch64__)
        asm("" : "+w"(x));
#endif
        return x;
    }

    static HEED_INLINE V round(V x) {
#if defined(__AVX512F__)
        if constexpr (L == 16) { return V(_mm512_roundscale_ps(__m512(x), 0x08)); }
#endif
#if defined(__AVX2__)
        if constexpr (L == 8) { return V(_mm256_round_ps(__m256(x), 0x08)); }
        if constexpr (L == 4) { return V(_mm_round_ps(__m128(x), 0x08)); }
#endif
        const V magic = all(12582912.0F);  // 1.5 * 2^23: adding it rounds |x| < 2^22 to nearest even
        return (x + magic) - magic;
    }

    /// 2^x; exactly 0 below about -150, infinity from 128 up, NaN for NaN. 2^0 is exactly 1. Relative error
    /// 1e-7 (degree-5 minimax polynomial on [-1/2, 1/2]: 9.2e-8).
    static HEED_INLINE V exp2(V x) {
#if defined(__AVX512F__)
        constexpr bool scalef = true;
#else
        constexpr bool scalef = false;
#endif
        if constexpr (!scalef) { x = max(all(-151.0F), min(all(129.0F), x)); }
        const V n = round(x);
        const V r = x - n;
        V p = all(1.326472707e-03F);
        p = p * r + all(9.671512649e-03F);
        p = p * r + all(5.550733744e-02F);
        p = p * r + all(2.402224209e-01F);
        p = p * r + all(6.931469776e-01F);
        p = p * r + all(1.0F);
        return scale_by_power(p, n);
    }

    /// x = 2^x for several vectors, kept side by side step by step: one after the other, so many of their instructions
    /// wait that the next vector's do not come into sight. Rough: relative error 1e-4 (degree 3), 2^0 still 1: much
    /// finer than bf16's 2e-3.
    template <bool Rough, int Count>
    static HEED_INLINE void exp2_each(V (&x)[Count]) {
#if !defined(__AVX512F__)
        for (V& each : x) { each = exp2(each); }
#else
        constexpr float fine[] = {1.326472707e-03F, 9.671512649e-03F, 5.550733744e-02F,
                                  2.402224209e-01F, 6.931469776e-01F, 1.0F};
        constexpr float rough[] = {5.500733529e-02F, 2.422111861e-01F, 6.932831239e-01F, 1.0F};
        constexpr int degree = Rough ? 3 : 5;
        V n[Count], p[Count];
        HEED_UNROLL
        for (int c = 0; c < Count; ++c) { n[c] = rounded(round(x[c])); }
        HEED_UNROLL
        for (int c = 0; c < Count; ++c) {
            x[c] = rounded(x[c] - n[c]);
            p[c] = all(Rough ? rough[0] : fine[0]);
        }
        HEED_UNROLL
        for (int k = 1; k <= degree; ++k) {
            HEED_UNROLL
            for (int c = 0; c < Count; ++c) { p[c] = rounded(p[c] * x[c] + all(Rough ? rough[k % 4] : fine[k])); }
        }
        HEED_UNROLL
        for (int c = 0; c < Count; ++c) { x[c] = rounded(scale_by_power(p[c], n[c])); }
#endif
    }

    /// p * 2^n for whole n; under- and overflows to 0 and infinity.
    static HEED_INLINE V scale_by_power(V p, V n) {
#if defined(__AVX512F__)
        if constexpr (L == 16) { return V(_mm512_scalef_ps(__m512(p), __m512(n))); }
#if defined(__AVX512VL__)
        if constexpr (L == 8) { return V(_mm256_scalef_ps(__m256(p), __m256(n))); }
        if constexpr (L == 4) { return V(_mm_scalef_ps(__m128(p), __m128(n))); }
#endif
#endif
        // In two halves, so that each power is a normal number.
        const W whole = __builtin_convertvector(n, W);
        const W half = whole >> 1;
        const V a = V((half + 127) << 23);
        const V b = V((whole - half + 127) << 23);
        return p * a * b;
    }

    static HEED_INLINE float reduce_add(V v) {
        float lane[L];
        store(lane, v);
        for (int width = L / 2; width > 0; width /= 2) {
            for (int n = 0; n < width; ++n) { lane[n] += lane[n + width]; }
        }
        return lane[0];
    }

    /// (a, b) rounded to bf16 in the lower and upper half of each lane; NaN stays NaN.
    static HEED_INLINE V pair_bf16(V a, V b) {
#if defined(__AVX512BF16__)
        if constexpr (L == 16) {
            const __m512i both = __m512i(_mm512_cvtne2ps_pbh(__m512(b), __m512(a)));
            const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7,
                                                   22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
            return V(_mm512_permutexvar_epi16(order, both));
        }
#endif
        const auto round = [](V x) {
            const Word word = Word(x);
            const Word rounded = (word + 0x7fffU + ((word >> 16) & 1U)) >> 16;
            return x == x ? rounded : (word >> 16) | 0x40U;
        };
        return V(round(a) | round(b) << 16);
    }

#if defined(__AVX512BF16__)
    /// Lanes 2n and 2n + 1 rounded to bf16 side by side in to[n].
    static HEED_INLINE void store_bf16(float* to, V v) requires(L == 16) {
        const __m256bh words = _mm512_cvtneps_pbh(__m512(v));
        __builtin_memcpy(to, &words, sizeof(words));
    }
#endif

    /// Are all lanes of a comparison true?
    static HEED_INLINE bool every(W mask) {
#if defined(__AVX512DQ__)
        if constexpr (L == 16) { return _mm512_movepi32_mask(__m512i(mask)) == 0xFFFF; }
#endif
#if defined(__AVX2__)
        if constexpr (L == 8) { return _mm256_movemask_ps(__m256(mask)) == 0xFF; }
#endif
#if defined(__x86_64__)
        if constexpr (L == 4) { return _mm_movemask_ps(__m128(mask)) == 0xF; }
#endif
        std::int32_t lane[L];
        store(lane, mask);
        std::int32_t both = -1;
        for (int n = 0; n < L; ++n) { both &= lane[n]; }
        return both != 0;
    }

#if defined(__AVX512F__)
    /// Words in the lower halves of wide lanes, whatever is in the upper halves.
    static constexpr bool has_wide_lanes = L == 16;
    static HEED_INLINE Word upper_words(Word x) { return Word(_mm512_srli_epi64(__m512i(x), 32)); }
    static HEED_INLINE Word multiply_lower_words(Word x, std::uint32_t factor) {
        return Word(_mm512_mul_epu32(__m512i(x), _mm512_set1_epi32(static_cast<int>(factor))));
    }
    /// The lower words of a in the even lanes, those of b in the odd ones.
    static HEED_INLINE Word words_of_halves(Word a, Word b) {
        return Word(_mm512_mask_shuffle_epi32(__m512i(a), 0xAAAA, __m512i(b), _MM_PERM_CCAA));
    }
#else
    static constexpr bool has_wide_lanes = false;
#endif

    /// The upper and lower words of a * b for a constant b.
    static HEED_INLINE void multiply_wide(Word a, std::uint32_t b, Word& high, Word& low) {
#if defined(__AVX2__)
        if constexpr (L == 8) {
            const __m256i factor = _mm256_set1_epi32(static_cast<int>(b));
            const __m256i even = _mm256_mul_epu32(__m256i(a), factor);
            const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(__m256i(a), 32), factor);
            high = Word(_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA));
            low = a * all(b);
            return;
        }
#endif
        typedef std::uint64_t Wide __attribute__((vector_size(8 * L)));
        const Wide product = __builtin_convertvector(a, Wide) * std::uint64_t{b};
        high = __builtin_convertvector(product >> 32, Word);
        low = __builtin_convertvector(product, Word);
    }

    /// Lanes 2n and 2n+1: lanes n and n + L/2 of a (of b) added up.
    static HEED_INLINE V add_halves(V a, V b) {
        return interleave<0>(a, b, std::make_index_sequence<L>{}) +
               interleave<L / 2>(a, b, std::make_index_sequence<L>{});
    }

#if defined(__AVX512F__)
    /// A 16 x 16 transpose in two steps: four by four within quarters of a register, then the quarters themselves.
    static HEED_INLINE void transpose_squares(V& a, V& b, V& c, V& d) {
        const __m512 ab[2] = {_mm512_unpacklo_ps(__m512(a), __m512(b)), _mm512_unpackhi_ps(__m512(a), __m512(b))};
        const __m512 cd[2] = {_mm512_unpacklo_ps(__m512(c), __m512(d)), _mm512_unpackhi_ps(__m512(c), __m512(d))};
        a = V(_mm512_shuffle_ps(ab[0], cd[0], 0x44));
        b = V(_mm512_shuffle_ps(ab[0], cd[0], 0xEE));
        c = V(_mm512_shuffle_ps(ab[1], cd[1], 0x44));
        d = V(_mm512_shuffle_ps(ab[1], cd[1], 0xEE));
    }
    static HEED_INLINE void transpose_quarters(V& a, V& b, V& c, V& d) {
        const __m512 ab[2] = {quarters<0x44>(a, b), quarters<0xEE>(a, b)};
        const __m512 cd[2] = {quarters<0x44>(c, d), quarters<0xEE>(c, d)};
        a = V(quarters<0x88>(ab[0], cd[0]));
        b = V(quarters<0xDD>(ab[0], cd[0]));
        c = V(quarters<0x88>(ab[1], cd[1]));
        d = V(quarters<0xDD>(ab[1], cd[1]));
    }
#endif

    /// Rows become columns: L vectors of L lanes, in place.
    static HEED_INLINE void transpose(V (&x)[L]) {
#if defined(__AVX512F__)
        if constexpr (L == 16) {  // half the time of the perfect shuffles below
            HEED_UNROLL
            for (int n = 0; n < 16; n += 4) { transpose_squares(x[n], x[n + 1], x[n + 2], x[n + 3]); }
            HEED_UNROLL
            for (int n = 0; n < 4; ++n) { transpose_quarters(x[n], x[n + 4], x[n + 8], x[n + 12]); }
            return;
        }
#endif
#if defined(__AVX2__)
        if constexpr (L == 8) {  // mostly within halves of a register, where shuffles are quickest
            __m256 pairs[8], quads[8];
            HEED_UNROLL
            for (int n = 0; n < 8; n += 2) {
                pairs[n] = _mm256_unpacklo_ps(__m256(x[n]), __m256(x[n + 1]));
                pairs[n + 1] = _mm256_unpackhi_ps(__m256(x[n]), __m256(x[n + 1]));
            }
            HEED_UNROLL
            for (int n = 0; n < 8; n += 4) {
                quads[n] = _mm256_shuffle_ps(pairs[n], pairs[n + 2], 0x44);
                quads[n + 1] = _mm256_shuffle_ps(pairs[n], pairs[n + 2], 0xEE);
                quads[n + 2] = _mm256_shuffle_ps(pairs[n + 1], pairs[n + 3], 0x44);
                quads[n + 3] = _mm256_shuffle_ps(pairs[n + 1], pairs[n + 3], 0xEE);
            }
            HEED_UNROLL
            for (int n = 0; n < 4; ++n) {
                x[n] = V(_mm256_permute2f128_ps(quads[n], quads[n + 4], 0x20));
                x[n + 4] = V(_mm256_permute2f128_ps(quads[n], quads[n + 4], 0x31));
            }
            return;
        }
#endif
        // log2(L) rounds of perfect shuffles of vectors n and n + L/2.
        HEED_UNROLL
        for (int round = 1; round < L; round *= 2) {
            V y[L];
            HEED_UNROLL
            for (int n = 0; n < L / 2; ++n) {
                y[2 * n] = interleave<0>(x[n], x[n + L / 2], std::make_index_sequence<L>{});
                y[2 * n + 1] = interleave<L / 2>(x[n], x[n + L / 2], std::make_index_sequence<L>{});
            }
            HEED_UNROLL
            for (int n = 0; n < L; ++n) { x[n] = y[n]; }
        }
    }

private:
#if defined(__AVX512F__)
    template <int Which>
    static HEED_INLINE __m512 quarters(auto a, auto b) {
        return _mm512_shuffle_f32x4(__m512(a), __m512(b), Which);
    }
#endif
    template <class Vector, class T, std::size_t... Lane>
    static HEED_INLINE Vector all_of(T x, std::index_sequence<Lane...>) {
        return Vector{(static_cast<void>(Lane), x)...};
    }
    template <int Begin, std::size_t... Lane>
    static HEED_INLINE V interleave(V a, V b, std::index_sequence<Lane...>) {
#if defined(__clang__)
        return __builtin_shufflevector(a, b, (Begin + static_cast<int>(Lane) / 2 + (Lane % 2 == 0 ? 0 : L))...);
#else
        return __builtin_shuffle(a, b, W{(Begin + static_cast<int>(Lane) / 2 + (Lane % 2 == 0 ? 0 : L))...});
#endif
    }
};

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
#if defined(__AVX512F__)
    if constexpr (L == 16) {  // first quarters of a register, then within them: shuffles that need no table
        __m512 y[16];
        HEED_UNROLL
        for (int n = 0; n < 16; ++n) { y[n] = __m512(x[(n & 5) << 1 | (n & 10) >> 1]); }
        HEED_UNROLL
        for (int n = 0; n < 8; ++n) {
            y[n] =
                _mm512_add_ps(_mm512_shuffle_f32x4(y[n], y[n + 8], 0x44), _mm512_shuffle_f32x4(y[n], y[n + 8], 0xEE));
        }
        HEED_UNROLL
        for (int n = 0; n < 4; ++n) {
            y[n] =
                _mm512_add_ps(_mm512_shuffle_f32x4(y[n], y[n + 4], 0x88), _mm512_shuffle_f32x4(y[n], y[n + 4], 0xDD));
        }
        HEED_UNROLL
        for (int n = 0; n < 2; ++n) {
            y[n] = _mm512_add_ps(_mm512_unpacklo_ps(y[n], y[n + 2]), _mm512_unpackhi_ps(y[n], y[n + 2]));
        }
        return F<L>(_mm512_add_ps(_mm512_shuffle_ps(y[0], y[1], 0x44), _mm512_shuffle_ps(y[0], y[1], 0xEE)));
    }
#endif
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

}  // namespace heed::cpu
