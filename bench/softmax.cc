#include "softmax.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "exp.h"

namespace heed::bench {
namespace {

template <int Bytes>
struct Rows {
    using Float = typename FloatVector<Bytes>::type;
    static constexpr long lanes = Bytes / 4;

    HEED_BENCH_INLINE static Float& at(float* data) { return *reinterpret_cast<Float*>(data); }
    HEED_BENCH_INLINE static const Float& at(const float* data) { return *reinterpret_cast<const Float*>(data); }

    HEED_BENCH_INLINE static float maximum(const float* data, long size) {
        float result = -INFINITY;
        long n = 0;
        if (size >= 4 * lanes) {
            Float best[4] = {at(data), at(data + lanes), at(data + 2 * lanes), at(data + 3 * lanes)};
            for (n = 4 * lanes; n + 4 * lanes <= size; n += 4 * lanes) {
                for (long u = 0; u < 4; ++u) {
                    const Float& x = at(data + n + u * lanes);
                    best[u] = x > best[u] ? x : best[u];
                }
            }
            for (long u = 0; u < 4; ++u) {
                for (long lane = 0; lane < lanes; ++lane) { result = std::max(result, best[u][lane]); }
            }
        }
        for (; n < size; ++n) { result = std::max(result, data[n]); }
        return result;
    }

    /// data = exp(data - shift); returns the sum.
    HEED_BENCH_INLINE static float exponentials(float* data, long size, float shift) {
        Float sums[2] = {};
        long n = 0;
        for (; n + 2 * lanes <= size; n += 2 * lanes) {
            for (long u = 0; u < 2; ++u) {
                Float x = at(data + n + u * lanes) - shift;
                exp_in_place<Bytes>(x);
                at(data + n + u * lanes) = x;
                sums[u] += x;
            }
        }
        float sum = 0;
        for (; n < size; n += lanes) {
            const long rest = std::min(lanes, size - n);
            Float x = {};
            for (long lane = 0; lane < rest; ++lane) { x[lane] = data[n + lane] - shift; }
            exp_in_place<Bytes>(x);
            for (long lane = 0; lane < rest; ++lane) { sum += data[n + lane] = x[lane]; }
        }
        const Float both = sums[0] + sums[1];
        for (long lane = 0; lane < lanes; ++lane) { sum += both[lane]; }
        return sum;
    }

    HEED_BENCH_INLINE static void scale(float* data, long size, float factor) {
        long n = 0;
        for (; n + lanes <= size; n += lanes) { at(data + n) = at(data + n) * factor; }
        for (; n < size; ++n) { data[n] *= factor; }
    }

    HEED_BENCH_INLINE static void online_softmax(float* scores, long visible, long columns, float& row_maximum,
                                                 float& sum, float* out, long size) {
        if (visible > 0) {
            const float larger = std::max(row_maximum, maximum(scores, visible));
            const float correction = std::exp(row_maximum - larger);
            sum = sum * correction + exponentials(scores, visible, larger);
            if (larger != row_maximum) { scale(out, size, correction); }
            row_maximum = larger;
        }
        std::fill(scores + std::max(visible, 0L), scores + columns, 0.F);
    }

    HEED_BENCH_INLINE static void probabilities(float* scores, long visible, long columns, float lse) {
        if (visible > 0) { exponentials(scores, visible, lse); }
        std::fill(scores + std::max(visible, 0L), scores + columns, 0.F);
    }

    HEED_BENCH_INLINE static void score_gradient(float* dp, const float* p, long columns, float delta) {
        long n = 0;
        for (; n + lanes <= columns; n += lanes) { at(dp + n) = at(p + n) * (at(dp + n) - delta); }
        for (; n < columns; ++n) { dp[n] = p[n] * (dp[n] - delta); }
    }

    HEED_BENCH_INLINE static float dot(const float* a, const float* b, long size) {
        Float sums = {};
        long n = 0;
        for (; n + lanes <= size; n += lanes) { sums += at(a + n) * at(b + n); }
        float sum = 0;
        for (; n < size; ++n) { sum += a[n] * b[n]; }
        for (long lane = 0; lane < lanes; ++lane) { sum += sums[lane]; }
        return sum;
    }

    HEED_BENCH_INLINE static void narrow(const float* from, bf16* to, long size) {
        using Word = typename IntegerVector<std::uint32_t, Bytes>::type;
        using Half = typename IntegerVector<std::uint16_t, Bytes / 2>::type;
        long n = 0;
        for (; n + lanes <= size; n += lanes) {
            const Word bits = reinterpret_cast<Word>(at(from + n));
            const Word rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
            *reinterpret_cast<Half*>(to + n) = __builtin_convertvector(rounded, Half);
        }
        for (; n < size; ++n) { to[n] = bf16(from[n]); }
    }
};

// The table of one instruction set: plain functions that carry its target, the bodies above inlined into them.
#define HEED_BENCH_ROWS(name, bytes, target)                                                                        \
    struct name {                                                                                                   \
        target static void online_softmax(float* scores, long visible, long columns, float& maximum, float& sum,    \
                                          float* out, long size) {                                                  \
            Rows<bytes>::online_softmax(scores, visible, columns, maximum, sum, out, size);                         \
        }                                                                                                           \
        target static void probabilities(float* scores, long visible, long columns, float lse) {                    \
            Rows<bytes>::probabilities(scores, visible, columns, lse);                                              \
        }                                                                                                           \
        target static void score_gradient(float* dp, const float* p, long columns, float delta) {                   \
            Rows<bytes>::score_gradient(dp, p, columns, delta);                                                     \
        }                                                                                                           \
        target static float dot(const float* a, const float* b, long size) { return Rows<bytes>::dot(a, b, size); } \
        target static void scale(float* data, long size, float factor) { Rows<bytes>::scale(data, size, factor); }  \
        target static void narrow(const float* from, bf16* to, long size) { Rows<bytes>::narrow(from, to, size); }  \
        static constexpr RowOperations table{online_softmax, probabilities, score_gradient, dot, scale, narrow};    \
    };

HEED_BENCH_ROWS(Portable, 16, )
#if HEED_BENCH_X86
HEED_BENCH_ROWS(Avx2, 32, HEED_BENCH_AVX2)
HEED_BENCH_ROWS(Avx512, 64, HEED_BENCH_AVX512)
#endif

}  // namespace

const RowOperations& row_operations() {
#if HEED_BENCH_X86
    if (machine_isa() >= Isa::avx512) { return Avx512::table; }
    if (machine_isa() >= Isa::avx2) { return Avx2::table; }
#endif
    return Portable::table;
}

}  // namespace heed::bench
