#pragma once
/// The numbers that RoPE reads and writes, as float32 in registers: a vector of them, and one by one.

#include "cpu/simd/convert.h"

namespace heed::cpu {

/// Has x read here, once, and in this order: compilers move reads about, and repeat them instead of keeping what they
/// have read. Prefetchers want a row in order of address; on Zen 4 that is worth a sixth of the speed.
template <class Vector>
HEED_INLINE void read_here(Vector& x) {
#if defined(__AVX512F__)
    asm volatile("" : "+v"(x));
#elif defined(__x86_64__)
    asm volatile("" : "+x"(x));
#elif defined(__aarch64__)
    asm volatile("" : "+w"(x));
#endif
}

/// L float32, as they are.
template <class Isa>
struct RopeFloat {
    static constexpr int L = Isa::lanes;
    using S = Simd<Isa, L>;
    using Word = float;
    static HEED_INLINE F<L> get(const float* from) { return S::load(from); }
    static HEED_INLINE void put(float* to, F<L> x) { S::store(to, x); }
    static HEED_INLINE float one(float x) { return x; }
    static HEED_INLINE float back(float x) { return x; }
};

/// L bfloat16, each the upper half of a float32.
template <class Isa>
struct RopeBf16 {
    static constexpr int L = Isa::lanes;
    using Word = std::uint16_t;
    typedef std::uint16_t Words __attribute__((vector_size(2 * L)));
    static HEED_INLINE F<L> get(const std::uint16_t* from) {
        // GCC 12 widens and narrows vectors one number at a time.
#if defined(__AVX512F__)
        if constexpr (L == 16) {
            return F<L>(U<L>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)))) << 16);
        }
#endif
#if defined(__AVX2__)
        if constexpr (L == 8) {
            return F<L>(U<L>(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)))) << 16);
        }
#endif
        Words words;
        __builtin_memcpy(&words, from, sizeof(words));
        return F<L>(__builtin_convertvector(words, U<L>) << 16);
    }
    static HEED_INLINE void put(std::uint16_t* to, F<L> x) {
#if defined(__AVX512BF16__)
        if constexpr (L == 16) {  // what is below the smallest normal number becomes 0
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), __m256i(_mm512_cvtneps_pbh(__m512(x))));
            return;
        }
#elif defined(__AVX512F__)
        if constexpr (L == 16) {  // masks stay masks: half the instructions of what follows
            const __m512i bits = __m512i(x);
            const __mmask16 nan = _mm512_cmp_ps_mask(__m512(x), __m512(x), _CMP_UNORD_Q);
            const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
            const __m512i sum = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
            const __m512i kept = _mm512_mask_or_epi32(sum, nan, bits, _mm512_set1_epi32(0x400000));
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(_mm512_srli_epi32(kept, 16)));
            return;
        }
#endif
        const U<L> bits = rounded(x) >> 16;
#if defined(__AVX2__)
        if constexpr (L == 8) {
            const __m256i packed = _mm256_packus_epi32(__m256i(bits), __m256i(bits));
            _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                             _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08)));
            return;
        }
#endif
        const Words words = __builtin_convertvector(bits, Words);
        __builtin_memcpy(to, &words, sizeof(words));
    }
    /// The even and the odd ones of 2L numbers: both halves of a 32-bit lane.
    static HEED_INLINE void get_pairs(const std::uint16_t* from, F<L>& evens, F<L>& odds) {
        U<L> both;
        __builtin_memcpy(&both, from, sizeof(both));
        read_here(both);
        evens = F<L>(both << 16);
        odds = F<L>(both & 0xffff0000U);
    }
    static HEED_INLINE void put_pairs(std::uint16_t* to, F<L> evens, F<L> odds) {
#if defined(__AVX512BF16__)
        if constexpr (L == 16) {
            const __m512i halves = __m512i(_mm512_cvtne2ps_pbh(__m512(odds), __m512(evens)));
            // 32-bit lane n takes words n and 16 + n.
            _mm512_storeu_si512(to, _mm512_permutexvar_epi16(words_from(0x100000, 0x10001), halves));
            return;
        }
#endif
        const U<L> both = (rounded(evens) >> 16) | (rounded(odds) & 0xffff0000U);
        __builtin_memcpy(to, &both, sizeof(both));
    }

    /// 2L numbers that lie side by side, in whichever order is the quickest: one half and the other, or as pairs.
#if defined(__AVX512BF16__)
    static constexpr bool halves_are_quicker = L == 16;
#else
    static constexpr bool halves_are_quicker = false;
#endif
    static HEED_INLINE void get_two(const std::uint16_t* from, F<L>& first, F<L>& second) {
#if defined(__AVX512BF16__)
        if constexpr (halves_are_quicker) {  // the upper word of lane n takes word n, or 16 + n; the lower one is 0
            __m512i both = _mm512_loadu_si512(from);
            read_here(both);
            constexpr __mmask32 upper = 0xaaaaaaaa;
            first = F<L>(_mm512_maskz_permutexvar_epi16(upper, words_from(0, 0x10000), both));
            second = F<L>(_mm512_maskz_permutexvar_epi16(upper, words_from(0x100000, 0x10000), both));
            return;
        }
#endif
        get_pairs(from, first, second);
    }
    static HEED_INLINE void put_two(std::uint16_t* to, F<L> first, F<L> second) {
#if defined(__AVX512BF16__)
        if constexpr (halves_are_quicker) {
            _mm512_storeu_si512(to, __m512i(_mm512_cvtne2ps_pbh(__m512(second), __m512(first))));
            return;
        }
#endif
        put_pairs(to, first, second);
    }
    static HEED_INLINE float one(std::uint16_t x) { return widen_bf16(x); }
    static HEED_INLINE std::uint16_t back(float x) { return narrow_bf16(x); }

private:
#if defined(__AVX512BF16__)
    /// Two indices of words per 32-bit lane: first, first + step, ...
    static HEED_INLINE __m512i words_from(int first, int step) {
        const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        return _mm512_add_epi32(_mm512_mullo_epi32(lane, _mm512_set1_epi32(step)), _mm512_set1_epi32(first));
    }
#endif
    /// To nearest even, in the upper half; NaNs stay NaNs.
    static HEED_INLINE U<L> rounded(F<L> x) {
        const U<L> word = U<L>(x);
        return x == x ? word + 0x7fffU + ((word >> 16) & 1U) : word | 0x400000U;
    }
};

/// L float16.
template <class Isa>
struct RopeF16 {
    static constexpr int L = Isa::lanes;
    using Word = std::uint16_t;
    static HEED_INLINE F<L> get(const std::uint16_t* from) {
#if defined(__AVX512F__)
        if constexpr (L == 16) {
            return F<L>(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
        }
#endif
#if defined(__F16C__)
        if constexpr (L == 8) { return F<L>(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)))); }
#endif
        F<L> x;
        for (int n = 0; n < L; ++n) { x[n] = widen_f16(from[n]); }
        return x;
    }
    static HEED_INLINE void put(std::uint16_t* to, F<L> x) {
#if defined(__AVX512F__)
        if constexpr (L == 16) {
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtps_ph(__m512(x), 0));
            return;
        }
#endif
#if defined(__F16C__)
        if constexpr (L == 8) {
            _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(__m256(x), 0));
            return;
        }
#endif
        for (int n = 0; n < L; ++n) { to[n] = narrow_f16(x[n]); }
    }
    static HEED_INLINE float one(std::uint16_t x) { return widen_f16(x); }
    static HEED_INLINE std::uint16_t back(float x) { return narrow_f16(x); }
};

}  // namespace heed::cpu
