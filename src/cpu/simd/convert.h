#pragma once
#include "cpu/simd/simd.h"

#include <heed/dtype.h>

/// Rows of any float type and stride to and from contiguous float32, and to pairs of bf16.

namespace heed::cpu {

constexpr float negative_infinity = -__builtin_inff();

template <class T>
constexpr HEED_INLINE T smaller(T a, T b) {
    return a < b ? a : b;
}
template <class T>
constexpr HEED_INLINE T larger(T a, T b) {
    return a > b ? a : b;
}
HEED_INLINE std::int64_t round_up(std::int64_t n, std::int64_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}

HEED_INLINE std::uint32_t bits_of(float x) {
    std::uint32_t bits;
    __builtin_memcpy(&bits, &x, 4);
    return bits;
}
HEED_INLINE float float_of(std::uint32_t bits) {
    float x;
    __builtin_memcpy(&x, &bits, 4);
    return x;
}

HEED_INLINE float widen_bf16(std::uint16_t bits) { return float_of(static_cast<std::uint32_t>(bits) << 16); }
HEED_INLINE std::uint16_t narrow_bf16(float x) {
    const std::uint32_t word = bits_of(x);
    if ((word & 0x7fffffffU) > 0x7f800000U) { return static_cast<std::uint16_t>((word >> 16) | 0x40U); }
    return static_cast<std::uint16_t>((word + 0x7fffU + ((word >> 16) & 1U)) >> 16);
}
HEED_INLINE float widen_f16(std::uint16_t bits) {
#if defined(__F16C__)
    return _cvtsh_ss(bits);
#elif defined(__aarch64__)
    __fp16 half;
    __builtin_memcpy(&half, &bits, 2);
    return static_cast<float>(half);
#else
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
    const std::uint32_t magnitude = bits & 0x7fffU;
    if (magnitude >= 0x7c00U) { return float_of(sign | 0x7f800000U | ((magnitude & 0x3ffU) << 13)); }
    if (magnitude < 0x400U) { return float_of(sign | bits_of(static_cast<float>(magnitude) * 0x1p-24F)); }
    return float_of(sign | ((magnitude << 13) + 0x38000000U));
#endif
}
HEED_INLINE std::uint16_t narrow_f16(float x) {
#if defined(__F16C__)
    return static_cast<std::uint16_t>(_cvtss_sh(x, 0));
#elif defined(__aarch64__)
    const __fp16 half = static_cast<__fp16>(x);
    std::uint16_t bits;
    __builtin_memcpy(&bits, &half, 2);
    return bits;
#else
    const std::uint32_t word = bits_of(x);
    const std::uint32_t sign = (word >> 16) & 0x8000U;
    const std::uint32_t magnitude = word & 0x7fffffffU;
    if (magnitude > 0x7f800000U) { return static_cast<std::uint16_t>(sign | 0x7e00U); }
    if (magnitude >= 0x477ff000U) { return static_cast<std::uint16_t>(sign | 0x7c00U); }
    if (magnitude < 0x38800000U) {
        return static_cast<std::uint16_t>(sign | (bits_of(float_of(magnitude) + 0.5F) - 0x3f000000U));
    }
    return static_cast<std::uint16_t>(sign | ((magnitude - 0x38000000U + 0xfffU + ((magnitude >> 13) & 1U)) >> 13));
#endif
}

/// to[0..n) = row of `dtype` at `from`, elements `stride` apart.
template <class Isa>
void load_row(DType dtype, const char* from, std::int64_t stride, std::int64_t n, float* to) {
    const auto* words = reinterpret_cast<const std::uint16_t*>(from);
    switch (dtype) {
        case DType::f32:
            if (stride == 1) {
                __builtin_memcpy(to, from, static_cast<std::size_t>(n) * 4);
            } else {
                const auto* numbers = reinterpret_cast<const float*>(from);
                for (std::int64_t c = 0; c < n; ++c) { to[c] = numbers[c * stride]; }
            }
            break;
        case DType::bf16:
            if (stride == 1) {
                for (std::int64_t c = 0; c < n; ++c) { to[c] = widen_bf16(words[c]); }
            } else {
                for (std::int64_t c = 0; c < n; ++c) { to[c] = widen_bf16(words[c * stride]); }
            }
            break;
        case DType::f16: {
            std::int64_t c = 0;
#if defined(__AVX512F__)
            for (; stride == 1 && c + 16 <= n; c += 16) {
                const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words + c));
                _mm512_storeu_ps(to + c, _mm512_cvtph_ps(half));
            }
#elif defined(__F16C__)
            for (; stride == 1 && c + 8 <= n; c += 8) {
                const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(words + c));
                _mm256_storeu_ps(to + c, _mm256_cvtph_ps(half));
            }
#endif
            for (; c < n; ++c) { to[c] = widen_f16(words[c * stride]); }
            break;
        }
        case DType::f64: {
            const auto* numbers = reinterpret_cast<const double*>(from);
            for (std::int64_t c = 0; c < n; ++c) { to[c] = static_cast<float>(numbers[c * stride]); }
            break;
        }
        default: break;
    }
}

/// The row at `to`, elements `stride` apart, = factor * from[0..n).
template <class Isa>
void store_row(DType dtype, char* to, std::int64_t stride, std::int64_t n, const float* from, float factor) {
    auto* words = reinterpret_cast<std::uint16_t*>(to);
    switch (dtype) {
        case DType::f32: {
            auto* numbers = reinterpret_cast<float*>(to);
            if (stride == 1) {
                for (std::int64_t c = 0; c < n; ++c) { numbers[c] = from[c] * factor; }
            } else {
                for (std::int64_t c = 0; c < n; ++c) { numbers[c * stride] = from[c] * factor; }
            }
            break;
        }
        case DType::bf16:
            if (stride == 1) {
                for (std::int64_t c = 0; c < n; ++c) { words[c] = narrow_bf16(from[c] * factor); }
            } else {
                for (std::int64_t c = 0; c < n; ++c) { words[c * stride] = narrow_bf16(from[c] * factor); }
            }
            break;
        case DType::f16:
            for (std::int64_t c = 0; c < n; ++c) { words[c * stride] = narrow_f16(from[c] * factor); }
            break;
        case DType::f64: {
            auto* numbers = reinterpret_cast<double*>(to);
            for (std::int64_t c = 0; c < n; ++c) { numbers[c * stride] = static_cast<double>(from[c] * factor); }
            break;
        }
        default: break;
    }
}

/// to[column][row] = row[r][column], 32-bit lanes; row(r) gives the r-th row's address. Lanes past `rows` repeat the
/// last row. `stride` of to, a multiple of L, is at least rows rounded up to L.
template <class Isa, int L, class Row>
HEED_INLINE void transpose_rows(Row row, std::int64_t rows, std::int64_t columns, float* to, std::int64_t stride) {
    using S = Simd<Isa, L>;
    for (std::int64_t r = 0; r < rows; r += L) {
        const float* from[L];
        HEED_UNROLL
        for (int n = 0; n < L; ++n) { from[n] = row(smaller<std::int64_t>(r + n, rows - 1)); }
        std::int64_t c = 0;
        for (; c + L <= columns; c += L) {
            F<L> block[L];
            HEED_UNROLL
            for (int n = 0; n < L; ++n) { block[n] = S::load(from[n] + c); }
            S::transpose(block);
            HEED_UNROLL
            for (int n = 0; n < L; ++n) { S::store(to + (c + n) * stride + r, block[n]); }
        }
        for (; c < columns; ++c) {
            for (int n = 0; n < L; ++n) { to[c * stride + r + n] = from[n][c]; }
        }
    }
}

/// A bf16 row of n elements as pairs, zero-padded to an even number.
template <class Isa>
HEED_INLINE void copy_pairs(const char* from, std::int64_t stride, std::int64_t n, float* to) {
    const auto* words = reinterpret_cast<const std::uint16_t*>(from);
    auto* pairs = reinterpret_cast<std::uint16_t*>(to);
    if (stride == 1) {
        __builtin_memcpy(pairs, words, static_cast<std::size_t>(n) * 2);
    } else {
        for (std::int64_t c = 0; c < n; ++c) { pairs[c] = words[c * stride]; }
    }
    if (n % 2 != 0) { pairs[n] = 0; }
}

#if defined(__AVX512BW__)
/// to[n] = (a[n], b[n]) for 32 words of each.
template <class Isa>
HEED_INLINE void interleave_words(__m512i a, __m512i b, void* to) {
    const __m512i left = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6,
                                          37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i right = _mm512_add_epi16(left, _mm512_set1_epi16(16));
    _mm512_storeu_si512(to, _mm512_permutex2var_epi16(a, left, b));
    _mm512_storeu_si512(static_cast<char*>(to) + 64, _mm512_permutex2var_epi16(a, right, b));
}
#endif

/// Two rows of bf16 interleaved into pairs: to[e] = (a[e], b[e]); b may be null (zeros). Zero-padded to `lanes`.
template <class Isa>
HEED_INLINE void interleave_rows(const char* a, const char* b, std::int64_t stride, std::int64_t n, std::int64_t lanes,
                                 float* to) {
    const auto* x = reinterpret_cast<const std::uint16_t*>(a);
    const auto* y = reinterpret_cast<const std::uint16_t*>(b);
    auto* pairs = reinterpret_cast<std::uint32_t*>(to);
    std::int64_t e = 0;
#if defined(__AVX512BW__)
    for (; stride == 1 && b != nullptr && e + 32 <= n; e += 32) {  // whole lines of both: nothing but two shuffles
        interleave_words<Isa>(_mm512_loadu_si512(x + e), _mm512_loadu_si512(y + e), pairs + e);
    }
    for (; stride == 1 && b != nullptr && e + 16 <= n; e += 16) {
        const __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + e)));
        const __m512i high = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(y + e)));
        _mm512_storeu_si512(pairs + e, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
    }
#endif
    for (; e < n; ++e) {
        const std::uint32_t high = b == nullptr ? 0U : y[e * stride];
        pairs[e] = x[e * stride] | high << 16;
    }
    for (; e < lanes; ++e) { pairs[e] = 0; }
}

}  // namespace heed::cpu
