#pragma once
/// The cosines and sines of RoPE for one instruction set, in double precision, rounded once.

#include "cpu/rope/call.h"
#include "cpu/simd/simd.h"

namespace heed::cpu {

/// N doubles, and as many integers.
template <int N>
struct WideTypes {
    typedef double Doubles __attribute__((vector_size(8 * N)));
    typedef std::int64_t Integers __attribute__((vector_size(8 * N)));
};

template <class Isa>
struct RopeTableKernel {
    static constexpr int wide = Isa::lanes / 2;  ///< doubles of one register
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

    /// The cosines and sines of `count` positions, in whole vectors: frequencies and rows are padded. `steps` is room
    /// for two more rows, of double.
    ///
    /// From one position to the next the angle grows by that of position 1, a seventh of the work. Those of multiples
    /// of 8 are computed anew: errors stay below 1e-14, and what a position gives does not depend on its neighbours.
    /// Far positions are computed one by one, as there the rounding of position * frequency is what counts.
    static void fill_table(const RopeCall& call, std::int64_t count, const std::int64_t* positions, double* steps,
                           float* cosines, float* sines) {
        constexpr std::int64_t low_bits = 7;
        for (std::int64_t i = 0; i < call.padded_pairs; i += wide) {
            D c;
            D s;
            exact(call, i, 1.0, c, s);
            __builtin_memcpy(steps + i, &c, sizeof(c));
            __builtin_memcpy(steps + call.padded_pairs + i, &s, sizeof(s));
        }
        for (std::int64_t r = 0; r < count;) {
            Run run{r, 1, positions[r], 0};
            ++r;
            if (!is_far(call, run.base)) {
                run.base = positions[run.row] & ~low_bits;
                run.skipped = positions[run.row] - run.base;
                while (r < count && positions[r] == positions[r - 1] + 1 && (positions[r] & low_bits) != 0 &&
                       !is_far(call, positions[r])) {
                    ++r;
                }
                run.rows = r - run.row;
            }
            if (call.factor == 1) {
                fill_run<false>(call, run, steps, cosines, sines);
            } else {
                fill_run<true>(call, run, steps, cosines, sines);
            }
        }
    }

private:
    /// Rows of the table for positions one after the other: base + skipped, base + skipped + 1, ...
    struct Run {
        std::int64_t row;
        std::int64_t rows;
        std::int64_t base;
        std::int64_t skipped;
    };

    template <bool scaled>
    static HEED_INLINE void fill_run(const RopeCall& call, const Run& run, const double* steps, float* cosines,
                                     float* sines) {
        constexpr int side_by_side = 2;  // two chains hide each other's latency; padding is a multiple of both
        for (std::int64_t i = 0; i < call.padded_pairs; i += side_by_side * wide) {
            D c[side_by_side];
            D s[side_by_side];
            D step_c[side_by_side];
            D step_s[side_by_side];
            HEED_UNROLL
            for (int n = 0; n < side_by_side; ++n) {
                exact(call, i + n * wide, static_cast<double>(run.base), c[n], s[n]);
                step_c[n] = load(steps + i + n * wide);
                step_s[n] = load(steps + call.padded_pairs + i + n * wide);
            }
            const auto advance = [&] {
                HEED_UNROLL
                for (int n = 0; n < side_by_side; ++n) {
                    const D next = c[n] * step_c[n] - s[n] * step_s[n];
                    s[n] = s[n] * step_c[n] + c[n] * step_s[n];
                    c[n] = next;
                }
            };
            const auto keep = [&](std::int64_t r) {
                HEED_UNROLL
                for (int n = 0; n < side_by_side; ++n) {
                    const Half cosine = __builtin_convertvector(scaled ? c[n] * call.factor : c[n], Half);
                    const Half sine = __builtin_convertvector(scaled ? s[n] * call.factor : s[n], Half);
                    const std::int64_t at = (run.row + r) * call.padded_pairs + i + n * wide;
                    __builtin_memcpy(cosines + at, &cosine, sizeof(cosine));
                    __builtin_memcpy(sines + at, &sine, sizeof(sine));
                }
            };
            for (std::int64_t n = 0; n < run.skipped; ++n) { advance(); }
            keep(0);
            for (std::int64_t r = 1; r < run.rows; ++r) {
                advance();
                keep(r);
            }
        }
    }
};

}  // namespace heed::cpu
