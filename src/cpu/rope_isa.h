#pragma once
/// RoPE for one instruction set. The tokens of a block share one table of cosines and sines over all heads; what is left is
/// one read and one write of x, at the speed of memory.

#include "cpu/convert.h"
#include "cpu/isa/tables.h"
#include "cpu/rope_call.h"
#include "cpu/simd.h"

namespace heed::cpu {

template <class Isa>
struct RopeKernel {
    static constexpr int L = Isa::lanes;
    static constexpr int wide = L / 2;  ///< doubles of one register
    using S = Simd<Isa, L>;
    typedef double D __attribute__((vector_size(8 * wide)));
    typedef std::int64_t W __attribute__((vector_size(8 * wide)));

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

    static HEED_INLINE void put(const RopeCall& call, float* cosines, float* sines, std::int64_t i, double c, double s) {
        const auto cosine = static_cast<float>(c * call.factor);
        const auto sine = static_cast<float>(s * call.factor);
        if (call.interleaved) {
            cosines[2 * i] = cosines[2 * i + 1] = cosine;
            sines[2 * i] = -sine;
            sines[2 * i + 1] = sine;
        } else {
            cosines[i] = cosine;
            sines[i] = sine;
        }
    }

    /// The cosines and sines of one position. Interleaved: each cosine twice, each sine as (-sin, sin).
    static void angles(const RopeCall& call, double position, float* cosines, float* sines) {
        std::int64_t i = 0;
        const double reach = __builtin_fabs(position) * call.largest_frequency;
        for (; reach <= largest_angle && i < call.pairs; i += wide) {
            double few[wide];  // the last vector is filled up with a frequency it has
            const std::int64_t count = smaller<std::int64_t>(wide, call.pairs - i);
            for (std::int64_t n = 0; n < wide; ++n) { few[n] = call.frequencies[i + (n < count ? n : 0)]; }
            D c;
            D s;
            cos_sin(load(few) * position, c, s);
            double cosine[wide];
            double sine[wide];
            __builtin_memcpy(cosine, &c, sizeof(c));
            __builtin_memcpy(sine, &s, sizeof(s));
            for (std::int64_t n = 0; n < count; ++n) { put(call, cosines, sines, i + n, cosine[n], sine[n]); }
        }
        for (; i < call.pairs; ++i) {
            const double angle = position * call.frequencies[i];
            put(call, cosines, sines, i, __builtin_cos(angle), __builtin_sin(angle));
        }
    }

    /// to = from rotated; they may be the same row.
    static HEED_INLINE void rotate_halves(const float* from, float* to, std::int64_t pairs, const float* cosines,
                                          const float* sines) {
        std::int64_t i = 0;
        for (; i + L <= pairs; i += L) {
            const F<L> a = S::load(from + i);
            const F<L> b = S::load(from + pairs + i);
            const F<L> c = S::load(cosines + i);
            const F<L> s = S::load(sines + i);
            S::store(to + i, a * c - b * s);
            S::store(to + pairs + i, a * s + b * c);
        }
        for (; i < pairs; ++i) {
            const float a = from[i];
            const float b = from[pairs + i];
            to[i] = a * cosines[i] - b * sines[i];
            to[pairs + i] = a * sines[i] + b * cosines[i];
        }
    }

    template <std::size_t... Lane>
    static HEED_INLINE F<L> swap_neighbours(F<L> x, std::index_sequence<Lane...>) {
#if defined(__clang__)
        return __builtin_shufflevector(x, x, static_cast<int>(Lane ^ 1)...);
#else
        return __builtin_shuffle(x, I<L>{static_cast<std::int32_t>(Lane ^ 1)...});
#endif
    }
    static HEED_INLINE void rotate_interleaved(const float* from, float* to, std::int64_t pairs, const float* cosines,
                                               const float* sines) {
        std::int64_t i = 0;
        for (; i + L <= 2 * pairs; i += L) {
            const F<L> x = S::load(from + i);
            const F<L> y = swap_neighbours(x, std::make_index_sequence<L>{});
            S::store(to + i, x * S::load(cosines + i) + y * S::load(sines + i));
        }
        for (; i < 2 * pairs; i += 2) {
            const float a = from[i];
            const float b = from[i + 1];
            to[i] = a * cosines[i] + b * sines[i];
            to[i + 1] = b * cosines[i + 1] + a * sines[i + 1];
        }
    }

    static HEED_INLINE void rotate(const RopeCall& call, const float* from, float* to, const float* cosines,
                                   const float* sines) {
        if (call.interleaved) {
            rotate_interleaved(from, to, call.pairs, cosines, sines);
        } else {
            rotate_halves(from, to, call.pairs, cosines, sines);
        }
    }

    /// One row: in float32 as it lies there, all else by way of a row in scratch.
    static HEED_INLINE void row(const RopeCall& call, const char* from, char* to, const float* cosines,
                                const float* sines, float* scratch) {
        if (call.x.dtype == DType::f32 && call.out.dtype == DType::f32 && call.x.column == 1 && call.out.column == 1) {
            const auto* x = reinterpret_cast<const float*>(from);
            auto* y = reinterpret_cast<float*>(to);
            rotate(call, x, y, cosines, sines);
            const std::int64_t rest = call.size - 2 * call.pairs;
            if (rest > 0) {
                __builtin_memcpy(y + 2 * call.pairs, x + 2 * call.pairs, static_cast<std::size_t>(rest) * sizeof(float));
            }
            return;
        }
        load_row<Isa>(call.x.dtype, from, call.x.column, call.size, scratch);
        rotate(call, scratch, scratch, cosines, sines);
        store_row<Isa>(call.out.dtype, to, call.out.column, call.size, scratch, 1.0F);
    }

    static void block(const RopeCall& call, std::int64_t b, std::int64_t begin, std::int64_t count,
                      const std::int64_t* positions, float* scratch) {
        const std::int64_t stride = call.interleaved ? 2 * call.pairs : call.pairs;
        float* cosines = scratch;
        float* sines = cosines + RopeCall::block * stride;
        float* buffer = sines + RopeCall::block * stride;
        for (std::int64_t r = 0; r < count; ++r) {
            angles(call, static_cast<double>(positions[r]), cosines + r * stride, sines + r * stride);
        }
        const std::int64_t x_bytes = call.x.dtype == DType::f32 ? 4 : 2;
        const std::int64_t out_bytes = call.out.dtype == DType::f32 ? 4 : 2;
        const auto one = [&](std::int64_t h, std::int64_t r) {
            const std::int64_t t = begin + r;
            const char* from = call.x.data + (b * call.x.b + h * call.x.h + t * call.x.t) * x_bytes;
            char* to = call.out.data + (b * call.out.b + h * call.out.h + t * call.out.t) * out_bytes;
            row(call, from, to, cosines + r * stride, sines + r * stride, buffer);
        };
        if (call.heads_inside) {
            for (std::int64_t r = 0; r < count; ++r) {
                for (std::int64_t h = 0; h < call.heads; ++h) { one(h, r); }
            }
        } else {
            for (std::int64_t h = 0; h < call.heads; ++h) {
                for (std::int64_t r = 0; r < count; ++r) { one(h, r); }
            }
        }
    }
};

template <class Isa>
constexpr RopeFunctions rope_functions() {
    return {.block = RopeKernel<Isa>::block};
}

}  // namespace heed::cpu
