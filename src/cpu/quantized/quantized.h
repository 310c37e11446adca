#pragma once
#include "base/pool.h"
#include "cpu/matmul/finish.h"
#include "cpu/matmul/stretches.h"
#include "kernel/quantized_problem.h"

/// Products with weights in 8 and 4 bits. Rows of A become bytes with a scale for each 32; sums of 32 products of bytes
/// are exact, so every instruction set has the same ones, and are added up in float32, one group after the other.

namespace heed::cpu {

/// 32 numbers of a row of A as bytes.
struct ByteGroup {
    std::int8_t bytes[QuantizedLayout::group];
    float scale;
    std::int32_t start;  ///< where sums with weights begin, which takes their offset off: -offset * sum of the bytes
};

/// Rows of A in tiles of `height`, a tile's rows next to each other for each group: one address serves them all.
struct ByteRows {
    std::int64_t groups;
    std::int64_t height;
    ByteGroup* memory;

    HEED_INLINE ByteGroup* at(std::int64_t row, std::int64_t g) const {
        return memory + (row / height * groups + g) * height + row % height;
    }
};

template <class Isa>
struct QuantizedProduct {
    static constexpr int panel = QuantizedLayout::panel;
    static constexpr std::int64_t group = QuantizedLayout::group;
    static constexpr int L = Isa::lanes;
    static constexpr int vectors = panel / L;  ///< of a panel's sums
    using S = Simd<Isa, L>;

    const QuantizedProblem& problem;
    const MatmulProblem& p = problem.linear.product;
    const std::int64_t groups = (p.depth + group - 1) / group;

    static HEED_INLINE std::int32_t largest_of(I<L> x) {
#if defined(__AVX512F__)
        if constexpr (L == 16) { return _mm512_reduce_max_epi32(__m512i(x)); }
#endif
        std::int32_t lane[L];
        S::store(lane, x);
        for (int width = L / 2; width > 0; width /= 2) {
            for (int n = 0; n < width; ++n) { lane[n] = lane[n + width] > lane[n] ? lane[n + width] : lane[n]; }
        }
        return lane[0];
    }
    static HEED_INLINE std::int32_t sum_of(I<L> x) {
#if defined(__AVX512F__)
        if constexpr (L == 16) { return _mm512_reduce_add_epi32(__m512i(x)); }
#endif
        std::int32_t lane[L], sum = 0;
        S::store(lane, x);
        for (int n = 0; n < L; ++n) { sum += lane[n]; }
        return sum;
    }

    /// A group of floats to bytes. A number that is not finite makes the scale NaN.
    static HEED_INLINE void to_bytes(const float* x, int offset, ByteGroup& to) {
        constexpr int count = group / L;
        constexpr std::int32_t infinity = 0x7f800000;
        F<L> number[count];
        I<L> most =
            {};  // magnitudes as whole numbers, which are ordered as they are, those not finite above all others
        HEED_UNROLL
        for (int n = 0; n < count; ++n) {
            number[n] = S::load(x + n * L);
            const I<L> bits = I<L>(number[n]) & S::all(std::int32_t{0x7fffffff});
            most = bits > most ? bits : most;
        }
        const std::int32_t top = largest_of(most);
        const bool sound = top < infinity;
        const float largest = sound ? float_of(static_cast<std::uint32_t>(top)) : 0.0F;
        const float factor = largest > 0 ? 127.0F / largest : 0.0F;
        I<L> total = {};
        HEED_UNROLL
        for (int n = 0; n < count; ++n) {
            // Rounded twice, as the reference does: a fused product could round to the other side of a half.
            const F<L> scaled = S::round(S::rounded(number[n] * S::all(factor)));
            const I<L> whole = sound ? __builtin_convertvector(scaled, I<L>) : I<L>{};
            typedef std::int8_t Bytes __attribute__((vector_size(L)));
            const Bytes narrow = __builtin_convertvector(whole, Bytes);
            __builtin_memcpy(to.bytes + n * L, &narrow, L);
            total += whole;
        }
        to.scale = sound ? largest / 127.0F : __builtin_nanf("");
        to.start = -offset * sum_of(total);
    }
    /// Offset of stored weights that products leave in.
    HEED_INLINE int offset() const {
#if defined(__AVX512VNNI__)
        return problem.four_bits ? 8 : 128;
#elif defined(__AVX2__)
        return problem.four_bits ? 8 : 0;
#else
        return 0;
#endif
    }
    void row_to_bytes(std::int64_t row, const ByteRows& rows) const {
        float numbers[group];
        const int weight_offset = offset();
        ByteGroup* to = rows.at(row, 0);
        for (std::int64_t g = 0; g < groups; ++g, to += rows.height) {
            const std::int64_t count = row < p.rows ? smaller(group, p.depth - g * group) : 0;
            if (count == group) {
                to_bytes(floats_at<Isa>(p.a, row, g * group, group, numbers), weight_offset, *to);
                continue;
            }
            if (count > 0) {
                load_row<Isa>(p.a.dtype, element_at(p.a, row, g * group), p.a.column_stride, count, numbers);
            }
            for (std::int64_t n = count; n < group; ++n) { numbers[n] = 0; }
            to_bytes(numbers, weight_offset, *to);
        }
    }

    /// Sums of 32 products for 16 outputs, as vectors of L.
    struct Sums {
        I<L> of[vectors];
    };

#if defined(__AVX512VNNI__)
    static_assert(L == 16);
    /// The eight quads of inputs of a group's weights.
    struct Weights {
        __m512i quad[8];
    };
    template <bool FourBits>
    static HEED_INLINE Weights load_weights(const std::uint8_t* from) {
        Weights w;
        if constexpr (FourBits) {
            const __m512i low = _mm512_set1_epi8(15);
            HEED_UNROLL
            for (int q = 0; q < 4; ++q) {
                __m512i both = _mm512_loadu_si512(from + 64 * q);
                asm("" : "+v"(both));  // loaded once: it may span two lines of the cache
                w.quad[q] = _mm512_and_si512(both, low);
                w.quad[q + 4] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
            }
        } else {
            HEED_UNROLL
            for (int q = 0; q < 8; ++q) { w.quad[q] = _mm512_loadu_si512(from + 64 * q); }
        }
        return w;
    }
    /// Weights carry an offset, so that they are unsigned: it is taken off by where the sum begins.
    template <bool FourBits>
    static HEED_INLINE Sums multiply(const Weights& w, const ByteGroup& x) {
        __m512i even = _mm512_set1_epi32(x.start), odd = _mm512_setzero_si512();
        HEED_UNROLL
        for (int q = 0; q < 8; q += 2) {
            // Each by itself, so that it is spread on the way from memory and not by way of another register.
            std::int32_t first, second;
            __builtin_memcpy(&first, x.bytes + 4 * q, 4);
            __builtin_memcpy(&second, x.bytes + 4 * q + 4, 4);
            even = _mm512_dpbusd_epi32(even, w.quad[q], _mm512_set1_epi32(first));
            odd = _mm512_dpbusd_epi32(odd, w.quad[q + 1], _mm512_set1_epi32(second));
        }
        return {{I<L>(_mm512_add_epi32(even, odd))}};
    }
#elif defined(__AVX2__)
    struct Weights {
        __m256i quad[8][2];
    };
    template <bool FourBits>
    static HEED_INLINE Weights load_weights(const std::uint8_t* from) {
        Weights w;
        const auto at = [&](int n) HEED_INLINE_LAMBDA {
            return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 32 * n));
        };
        if constexpr (FourBits) {
            const __m256i low = _mm256_set1_epi8(15);
            HEED_UNROLL
            for (int n = 0; n < 8; ++n) {
                w.quad[n / 2][n % 2] = _mm256_and_si256(at(n), low);
                w.quad[n / 2 + 4][n % 2] = _mm256_and_si256(_mm256_srli_epi16(at(n), 4), low);
            }
        } else {
            const __m256i offset = _mm256_set1_epi8(-128);
            HEED_UNROLL
            for (int n = 0; n < 16; ++n) { w.quad[n / 2][n % 2] = _mm256_xor_si256(at(n), offset); }
        }
        return w;
    }
    /// Pairs of products are added in 16 bits. 4-bit weights with their offset fit (15 * 127 * 2); for 8-bit ones the
    /// sign goes to the other factor, so that 127 * 127 * 2 is the most.
    template <bool FourBits>
    static HEED_INLINE Sums multiply(const Weights& w, const ByteGroup& x) {
        const __m256i ones = _mm256_set1_epi16(1);
        Sums sums;
        HEED_UNROLL
        for (int h = 0; h < 2; ++h) {
            __m256i sum = _mm256_set1_epi32(x.start);
            HEED_UNROLL
            for (int q = 0; q < 8; ++q) {
                std::int32_t four;
                __builtin_memcpy(&four, x.bytes + 4 * q, 4);
                const __m256i y = _mm256_set1_epi32(four);
                const __m256i pairs =
                    FourBits ? _mm256_maddubs_epi16(w.quad[q][h], y)
                             : _mm256_maddubs_epi16(_mm256_abs_epi8(w.quad[q][h]), _mm256_sign_epi8(y, w.quad[q][h]));
                sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
            }
            sums.of[h] = I<L>(sum);
        }
        return sums;
    }
#else
    struct Weights {
        std::int8_t quad[8][4 * panel];
    };
    template <bool FourBits>
    static HEED_INLINE Weights load_weights(const std::uint8_t* from) {
        Weights w;
        for (int q = 0; q < (FourBits ? 4 : 8); ++q) {
            for (int n = 0; n < 4 * panel; ++n) {
                const int byte = from[64 * q + n];
                w.quad[q][n] = static_cast<std::int8_t>(FourBits ? (byte & 15) - 8 : byte - 128);
                if (FourBits) { w.quad[q + 4][n] = static_cast<std::int8_t>((byte >> 4) - 8); }
            }
        }
        return w;
    }
    template <bool FourBits>
    static HEED_INLINE Sums multiply(const Weights& w, const ByteGroup& x) {
        std::int32_t sum[panel] = {};
        for (int q = 0; q < 8; ++q) {
            for (int n = 0; n < panel; ++n) {
                for (int i = 0; i < 4; ++i) { sum[n] += w.quad[q][4 * n + i] * x.bytes[4 * q + i]; }
            }
        }
        Sums sums;
        for (int h = 0; h < vectors; ++h) { sums.of[h] = S::load(sum + h * L); }
        return sums;
    }
#endif

    static HEED_INLINE F<L> scales_at(const std::uint8_t* from, int vector) {
        const std::uint8_t* at = from + 2 * L * vector;
#if defined(__AVX512F__)
        if constexpr (L == 16) {
            return F<L>(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at))));
        }
#endif
#if defined(__F16C__)
        if constexpr (L == 8) { return F<L>(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)))); }
#endif
        float scale[L];
        for (int n = 0; n < L; ++n) {
            std::uint16_t bits;
            __builtin_memcpy(&bits, at + 2 * n, 2);
            scale[n] = widen_f16(bits);
        }
        return S::load(scale);
    }

    /// to[r][0..16) of one panel for a tile of rows of A. Asks for nothing ahead of time: the CPU does, and asking
    /// besides took a fifth of the speed.
    template <bool FourBits, int Rows>
    HEED_INLINE void tile(const std::uint8_t* weights, const ByteGroup* x, float (&to)[Rows][panel]) const {
        constexpr std::int64_t step = QuantizedLayout::group_bytes(FourBits);
        F<L> sum[Rows][vectors] = {};
        for (std::int64_t g = 0; g < groups; ++g, weights += step, x += Rows) {
            const Weights w = load_weights<FourBits>(weights + QuantizedLayout::scale_bytes);
            F<L> scale[vectors];
            HEED_UNROLL
            for (int h = 0; h < vectors; ++h) { scale[h] = scales_at(weights, h); }
            HEED_UNROLL
            for (int r = 0; r < Rows; ++r) {
                const Sums sums = multiply<FourBits>(w, x[r]);
                HEED_UNROLL
                for (int h = 0; h < vectors; ++h) {
                    const F<L> numbers = __builtin_convertvector(sums.of[h], F<L>);
                    sum[r][h] += numbers * (scale[h] * S::all(x[r].scale));
                }
            }
        }
        HEED_UNROLL
        for (int r = 0; r < Rows; ++r) {
            HEED_UNROLL
            for (int h = 0; h < vectors; ++h) { S::store(to[r] + h * L, sum[r][h]); }
        }
    }

    /// Whether sums are stored as they are.
    bool is_plain() const {
        return p.alpha == 1 && p.beta == 0 && problem.linear.bias.data == nullptr &&
               problem.linear.before.data == nullptr && problem.linear.activation == Activation::none &&
               p.c.dtype == DType::f32 && p.c.column_stride == 1;
    }

    static constexpr int most_rows = Isa::registers >= 32 && L == 16 ? 8 : 4;

    template <bool FourBits, int Rows>
    HEED_NOINLINE void rows_of_panels(const ByteRows& rows, std::int64_t first, std::int64_t last, std::int64_t begin,
                                      std::int64_t end) const {
        const std::int64_t bytes = groups * QuantizedLayout::group_bytes(FourBits);
        float sum[Rows][panel], buffer[panel];
        const bool plain = is_plain();
        for (std::int64_t n = first; n < last; ++n) {
            for (std::int64_t row = begin; row < end; row += Rows) {
                tile<FourBits, Rows>(problem.blocks + n * bytes, rows.at(row, 0), sum);
                const std::int64_t there = smaller<std::int64_t>(Rows, end - row);
                if (plain && (n + 1) * panel <= p.columns) {
                    for (std::int64_t r = 0; r < there; ++r) {
                        __builtin_memcpy(element_at(p.c, row + r, n * panel), sum[r], sizeof(sum[r]));
                    }
                    continue;
                }
                for (std::int64_t r = 0; r < there; ++r) {
                    finish_row<Isa>(problem.linear, row + r, n * panel,
                                    smaller<std::int64_t>(panel, p.columns - n * panel), sum[r], buffer);
                }
            }
        }
    }
    template <bool FourBits>
    HEED_INLINE void some_panels(const ByteRows& rows, std::int64_t first, std::int64_t last, std::int64_t begin,
                                 std::int64_t end) const {
        rows.height == 1 ? rows_of_panels<FourBits, 1>(rows, first, last, begin, end)
                         : rows_of_panels<FourBits, most_rows>(rows, first, last, begin, end);
    }

    /// Panels of a task. For one row they are read once, and a longer stretch of memory is read faster; but there are
    /// to be enough tasks to share.
    std::int64_t panels_at_once(std::int64_t panels) const {
        constexpr std::int64_t bytes = 1 << 17, tasks = 16;
        const std::int64_t many = bytes / (groups * QuantizedLayout::group_bytes(problem.four_bits));
        return p.rows > 1 ? 1 : larger<std::int64_t>(1, smaller(many, panels / tasks));
    }

    void run(detail::Pool& pool) const {
        constexpr std::int64_t block = 128;  // rows of A that stay in L2 while panels pass
        const std::int64_t height = p.rows == 1 ? 1 : most_rows, padded = round_up(p.rows, height);
        const auto bytes = static_cast<std::size_t>(padded * groups) * sizeof(ByteGroup);
        const ByteRows rows{groups, height, static_cast<ByteGroup*>(pool.shared().at_least(bytes))};
        const double numbers = static_cast<double>(p.rows) * static_cast<double>(p.depth);
        // What fills up the last tile is zeros.
        detail::parallel(pool, padded, detail::effort_for(4 * numbers),
                         [&](std::int64_t row, int) { row_to_bytes(row, rows); });
        const std::int64_t panels = (p.columns + panel - 1) / panel;
        const std::int64_t row_blocks = (p.rows + block - 1) / block;
        const double weights = static_cast<double>(p.columns) * static_cast<double>(p.depth);
        const double operations = weights * (4 + static_cast<double>(p.rows));
        const std::int64_t at_once = panels_at_once(panels), runs = (panels + at_once - 1) / at_once;
        auto some = [&](std::int64_t task, int) {
            const std::int64_t begin = task / runs * block, end = smaller(p.rows, begin + block);
            const std::int64_t first = task % runs * at_once, last = smaller(panels, first + at_once);
            problem.four_bits ? some_panels<true>(rows, first, last, begin, end)
                              : some_panels<false>(rows, first, last, begin, end);
        };
        if (p.rows == 1) { return in_stretches(pool, runs, detail::effort_for(operations), some); }
        detail::parallel(pool, runs * row_blocks, detail::effort_for(operations), some);
    }
};

template <class Isa>
void quantized_product(detail::Pool& pool, const QuantizedProblem& problem) {
    QuantizedProduct<Isa>{problem}.run(pool);
}

}  // namespace heed::cpu
