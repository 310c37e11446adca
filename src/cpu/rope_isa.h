#pragma once
/// RoPE for one instruction set. The tokens of a block share one table of cosines and sines over all heads; what is
/// left is one read and one write of x, at the speed of memory.

#include "cpu/convert.h"
#include "cpu/isa/tables.h"
#include "cpu/rope_call.h"
#include "cpu/simd.h"

namespace heed::cpu {

/// N doubles, and what is as many of something else.
template <int N>
struct WideTypes {
    typedef double Doubles __attribute__((vector_size(8 * N)));
    typedef std::int64_t Integers __attribute__((vector_size(8 * N)));
    typedef std::uint16_t Words __attribute__((vector_size(2 * N)));
};

template <class Isa>
struct RopeKernel {
    static constexpr int L = Isa::lanes;
    static constexpr int wide = L / 2;  ///< doubles of one register
    using S = Simd<Isa, L>;
    using D = typename WideTypes<wide>::Doubles;
    using W = typename WideTypes<wide>::Integers;
    using Half = F<wide>;

    /// Angles up to here are reduced with three parts of pi/2: even without fused multiply-add the error stays below
    /// 4e-9, a fifteenth of float32's. libm takes those beyond.
    static constexpr double largest_angle = 0x1p24;

    static HEED_INLINE D load(const double* from) {
        D v;
        __builtin_memcpy(&v, from, sizeof(v));
        return v;
    }

    /// cos and sin to about 1e-13 of |angle| <= largest_angle.
    static HEED_INLINE void cos_sin(D angle, D& cosine, D& sine) {
        const D magic = D{} + 0x1.8p52;  // adding it rounds to a whole number, which then stands in the lowest bits
        const D shifted = angle * 0.63661977236758134308 + magic;
        const D turns = shifted - magic;  // quarter turns
        D r = angle - turns * 0x1.921fb54442d18p+0;
        r = r - turns * 0x1.1a62633145c07p-54;
        r = r - turns * -0x1.f1976b7ed8fbcp-110;
        const D z = r * r;
        // Taylor to r^13 and r^14: the next terms are below 3e-14 at pi/4.
        D s = D{} + 1.0 / 6227020800.0;
        s = s * z - 1.0 / 39916800.0;
        s = s * z + 1.0 / 362880.0;
        s = s * z - 1.0 / 5040.0;
        s = s * z + 1.0 / 120.0;
        s = s * z - 1.0 / 6.0;
        s = s * z * r + r;
        D c = D{} - 1.0 / 87178291200.0;
        c = c * z + 1.0 / 479001600.0;
        c = c * z - 1.0 / 3628800.0;
        c = c * z + 1.0 / 40320.0;
        c = c * z - 1.0 / 720.0;
        c = c * z + 1.0 / 24.0;
        c = c * z - 0.5;
        c = c * z + 1.0;
        const W quarter = W(shifted);
        const W odd = -(quarter & 1);
        const W sine_sign = (quarter & 2) << 62;
        const W cosine_sign = ((quarter + 1) & 2) << 62;
        cosine = D(((W(c) & ~odd) | (W(s) & odd)) ^ cosine_sign);
        sine = D(((W(s) & ~odd) | (W(c) & odd)) ^ sine_sign);
    }

    static HEED_INLINE bool is_far(const RopeCall& call, std::int64_t position) {
        return __builtin_fabs(static_cast<double>(position)) * call.largest_frequency > largest_angle;
    }
    /// cos and sin of one position for the `wide` frequencies from i on.
    static HEED_INLINE void exact(const RopeCall& call, std::int64_t i, double position, D& c, D& s) {
        if (__builtin_fabs(position) * call.largest_frequency <= largest_angle) {
            cos_sin(load(call.frequencies + i) * position, c, s);
            return;
        }
        for (int n = 0; n < wide; ++n) {
            c[n] = __builtin_cos(call.frequencies[i + n] * position);
            s[n] = __builtin_sin(call.frequencies[i + n] * position);
        }
    }

    /// The cosines and sines of `count` positions, in whole vectors: frequencies and rows are padded.
    ///
    /// From one position to the next the angle grows by that of position 1, a seventh of the work. Those of multiples
    /// of 8 are computed anew: errors stay below 1e-14, and what a position gives does not depend on its neighbours.
    /// Far positions are computed one by one, as there the rounding of position * frequency is what counts.
    static void fill_table(const RopeCall& call, std::int64_t count, const std::int64_t* positions, float* cosines,
                           float* sines) {
        constexpr std::int64_t low_bits = 7;
        constexpr int side_by_side = 2;  // two chains hide each other's latency; padding is a multiple of both
        for (std::int64_t i = 0; i < call.padded_pairs; i += side_by_side * wide) {
            D c[side_by_side];
            D s[side_by_side];
            D step_c[side_by_side];
            D step_s[side_by_side];
            const auto compute = [&](std::int64_t position, D(&cosine)[side_by_side], D(&sine)[side_by_side]) {
                HEED_UNROLL
                for (int n = 0; n < side_by_side; ++n) {
                    exact(call, i + n * wide, static_cast<double>(position), cosine[n], sine[n]);
                }
            };
            const auto advance = [&] {
                HEED_UNROLL
                for (int n = 0; n < side_by_side; ++n) {
                    const D next = c[n] * step_c[n] - s[n] * step_s[n];
                    s[n] = s[n] * step_c[n] + c[n] * step_s[n];
                    c[n] = next;
                }
            };
            compute(1, step_c, step_s);
            for (std::int64_t r = 0; r < count; ++r) {
                const std::int64_t p = positions[r];
                if (is_far(call, p)) {
                    compute(p, c, s);
                } else if (r > 0 && p == positions[r - 1] + 1 && (p & low_bits) != 0 && !is_far(call, p - 1)) {
                    advance();
                } else {
                    compute(p & ~low_bits, c, s);
                    for (std::int64_t n = 0; n < (p & low_bits); ++n) { advance(); }
                }
                HEED_UNROLL
                for (int n = 0; n < side_by_side; ++n) {
                    const Half cosine = __builtin_convertvector(c[n] * call.factor, Half);
                    const Half sine = __builtin_convertvector(s[n] * call.factor, Half);
                    const std::int64_t at = r * call.padded_pairs + i + n * wide;
                    __builtin_memcpy(cosines + at, &cosine, sizeof(cosine));
                    __builtin_memcpy(sines + at, &sine, sizeof(sine));
                }
            }
        }
    }

    /// L numbers of each type in memory, as float32 in a register and one by one.
    struct Float {
        using Word = float;
        static HEED_INLINE F<L> get(const float* from) { return S::load(from); }
        static HEED_INLINE void put(float* to, F<L> x) { S::store(to, x); }
        static HEED_INLINE float one(float x) { return x; }
        static HEED_INLINE float back(float x) { return x; }
    };
    struct Bf16 {
        using Word = std::uint16_t;
        using Words = typename WideTypes<L>::Words;
        static HEED_INLINE F<L> get(const std::uint16_t* from) {
            // GCC 12 widens and narrows vectors one number at a time.
#if defined(__AVX512F__)
            if constexpr (L == 16) {
                return F<L>(U<L>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))))
                            << 16);
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
            const U<L> word = U<L>(x);
            const U<L> rounded = (word + 0x7fffU + ((word >> 16) & 1U)) >> 16;
            const U<L> bits = x == x ? rounded : (word >> 16) | 0x40U;
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
        static HEED_INLINE float one(std::uint16_t x) { return widen_bf16(x); }
        static HEED_INLINE std::uint16_t back(float x) { return narrow_bf16(x); }
    };
    struct F16 {
        using Word = std::uint16_t;
        static HEED_INLINE F<L> get(const std::uint16_t* from) {
#if defined(__AVX512F__)
            if constexpr (L == 16) {
                return F<L>(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
            }
#endif
#if defined(__F16C__)
            if constexpr (L == 8) {
                return F<L>(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
            }
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

    /// to = from rotated; they may be the same row.
    template <class From, class To>
    static HEED_INLINE void rotate_halves(const typename From::Word* from, typename To::Word* to, std::int64_t pairs,
                                          const float* cosines, const float* sines) {
        std::int64_t i = 0;
        for (; i + L <= pairs; i += L) {
            const F<L> a = From::get(from + i);
            const F<L> b = From::get(from + pairs + i);
            const F<L> c = S::load(cosines + i);
            const F<L> s = S::load(sines + i);
            To::put(to + i, a * c - b * s);
            To::put(to + pairs + i, a * s + b * c);
        }
        for (; i < pairs; ++i) {
            const float a = From::one(from[i]);
            const float b = From::one(from[pairs + i]);
            to[i] = To::back(a * cosines[i] - b * sines[i]);
            to[pairs + i] = To::back(a * sines[i] + b * cosines[i]);
        }
    }

    /// x1 x0 x3 x2 ...
    template <std::size_t... Lane>
    static HEED_INLINE F<L> swap_neighbours(F<L> x, std::index_sequence<Lane...>) {
#if defined(__clang__)
        return __builtin_shufflevector(x, x, static_cast<int>(Lane ^ 1)...);
#else
        return __builtin_shuffle(x, I<L>{static_cast<std::int32_t>(Lane ^ 1)...});
#endif
    }
    /// x0 x0 x1 x1 ... of the lower half.
    template <std::size_t... Lane>
    static HEED_INLINE F<L> twice(F<L> x, std::index_sequence<Lane...>) {
#if defined(__clang__)
        return __builtin_shufflevector(x, x, static_cast<int>(Lane / 2)...);
#else
        return __builtin_shuffle(x, I<L>{static_cast<std::int32_t>(Lane / 2)...});
#endif
    }
    template <class From, class To>
    static HEED_INLINE void rotate_interleaved(const typename From::Word* from, typename To::Word* to,
                                               std::int64_t pairs, const float* cosines, const float* sines) {
        constexpr auto lanes = std::make_index_sequence<L>{};
        F<L> sign;
        for (int n = 0; n < L; ++n) { sign[n] = n % 2 == 0 ? -1.0F : 1.0F; }
        std::int64_t i = 0;
        for (; i + wide <= pairs; i += wide) {  // reads a whole vector of the table, and half of it is needed
            const F<L> x = From::get(from + 2 * i);
            const F<L> y = swap_neighbours(x, lanes) * sign;
            To::put(to + 2 * i, x * twice(S::load(cosines + i), lanes) + y * twice(S::load(sines + i), lanes));
        }
        for (; i < pairs; ++i) {
            const float a = From::one(from[2 * i]);
            const float b = From::one(from[2 * i + 1]);
            to[2 * i] = To::back(a * cosines[i] - b * sines[i]);
            to[2 * i + 1] = To::back(b * cosines[i] + a * sines[i]);
        }
    }

    template <class From, class To>
    static HEED_INLINE void rotate(const RopeCall& call, const typename From::Word* from, typename To::Word* to,
                                   const float* cosines, const float* sines) {
        if (call.interleaved) {
            rotate_interleaved<From, To>(from, to, call.pairs, cosines, sines);
        } else {
            rotate_halves<From, To>(from, to, call.pairs, cosines, sines);
        }
    }

    /// A contiguous row, straight from memory to memory.
    template <class From, class To>
    struct Straight {
        static HEED_INLINE void row(const RopeCall& call, const char* from, char* to, const float* cosines,
                                    const float* sines, float*) {
            const auto* x = reinterpret_cast<const typename From::Word*>(from);
            auto* y = reinterpret_cast<typename To::Word*>(to);
            rotate<From, To>(call, x, y, cosines, sines);
            for (std::int64_t c = 2 * call.pairs; c < call.size; ++c) { y[c] = To::back(From::one(x[c])); }
        }
    };
    /// Any strides and types, by way of a row in scratch.
    struct Gathered {
        static HEED_INLINE void row(const RopeCall& call, const char* from, char* to, const float* cosines,
                                    const float* sines, float* scratch) {
            load_row<Isa>(call.x.dtype, from, call.x.column, call.size, scratch);
            rotate<Float, Float>(call, scratch, scratch, cosines, sines);
            store_row<Isa>(call.out.dtype, to, call.out.column, call.size, scratch, 1.0F);
        }
    };

    /// Token by token, the rows of several heads together: a row of the table then comes once for all of them from the
    /// second-level cache, which is busy with x, and x is read in as many runs. On Zen 4, [B,H,T,D] f32 in place: 1
    /// head 20 GB/s, 2 28, 4 40, 8 55, 16 29; a plain loop over the same memory 48. To another tensor 4 are best.
    template <class Way>
    static void rows(const RopeCall& call, std::int64_t b, std::int64_t begin, std::int64_t count, const float* cosines,
                     const float* sines, float* scratch) {
        const std::int64_t stride = call.padded_pairs;
        const std::int64_t x_bytes = call.x.dtype == DType::f32 ? 4 : 2;
        const std::int64_t out_bytes = call.out.dtype == DType::f32 ? 4 : 2;
        const bool eight = call.out.data == call.x.data && call.x.dtype == DType::f32;
        const std::int64_t together = call.heads_inside ? call.heads : eight ? 8 : 4;
        for (std::int64_t first = 0; first < call.heads; first += together) {
            const std::int64_t last = smaller(first + together, call.heads);
            for (std::int64_t r = 0; r < count; ++r) {
                const std::int64_t t = begin + r;
                for (std::int64_t h = first; h < last; ++h) {
                    const char* from = call.x.data + (b * call.x.b + h * call.x.h + t * call.x.t) * x_bytes;
                    char* to = call.out.data + (b * call.out.b + h * call.out.h + t * call.out.t) * out_bytes;
                    Way::row(call, from, to, cosines + r * stride, sines + r * stride, scratch);
                }
            }
        }
    }

    static void block(const RopeCall& call, std::int64_t b, std::int64_t begin, std::int64_t count,
                      const std::int64_t* positions, float* scratch) {
        float* cosines = scratch;
        float* sines = cosines + call.block * call.padded_pairs;
        float* buffer = sines + call.block * call.padded_pairs;
        fill_table(call, count, positions, cosines, sines);
        auto run = rows<Gathered>;
        if (call.x.column == 1 && call.out.column == 1) {
            const bool wide_out = call.out.dtype == DType::f32;
            if (call.x.dtype == DType::f32) { run = rows<Straight<Float, Float>>; }
            if (call.x.dtype == DType::bf16) {
                run = wide_out ? rows<Straight<Bf16, Float>> : rows<Straight<Bf16, Bf16>>;
            }
            if (call.x.dtype == DType::f16) { run = wide_out ? rows<Straight<F16, Float>> : rows<Straight<F16, F16>>; }
        }
        run(call, b, begin, count, cosines, sines, buffer);
    }
};

template <class Isa>
constexpr RopeFunctions rope_functions() {
    return {.block = RopeKernel<Isa>::block};
}

}  // namespace heed::cpu
