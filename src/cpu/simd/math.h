#pragma once
#include "cpu/simd/convert.h"

/// Functions of vectors that layers need, and vectors at the ends of rows.

namespace heed::cpu {

/// The first `count` numbers, zeros behind them.
template <class Isa, int L>
HEED_INLINE F<L> load_some(const float* from, std::int64_t count) {
    if (count >= L) { return Simd<Isa, L>::load(from); }
    float lane[L] = {};
    for (std::int64_t n = 0; n < count; ++n) { lane[n] = from[n]; }
    return Simd<Isa, L>::load(lane);
}
template <class Isa, int L>
HEED_INLINE void store_some(float* to, F<L> v, std::int64_t count) {
    if (count >= L) {
        Simd<Isa, L>::store(to, v);
        return;
    }
    float lane[L];
    Simd<Isa, L>::store(lane, v);
    for (std::int64_t n = 0; n < count; ++n) { to[n] = lane[n]; }
}

template <class Isa, int L>
struct Math {
    using S = Simd<Isa, L>;
    using V = F<L>;

    /// e^x: 0 for -infinity, infinity from 89 up, NaN for NaN.
    static HEED_INLINE V exp(V x) {
        // The second operand survives where one is NaN.
        const V clamped = S::min(S::all(200.0F), S::max(S::all(-200.0F), x * S::all(1.4426950408889634F)));
        return S::exp2(clamped);
    }
    static HEED_INLINE V sigmoid(V x) { return S::all(1.0F) / (S::all(1.0F) + exp(-x)); }
    /// Near 0 by a polynomial (relative error 1.5e-8 up to 0.7), because 1 - 2 / (1 + e^2x) has no digits left there.
    static HEED_INLINE V tanh(V x) {
        const V z = x * x;
        V p = S::all(-5.155104430e-03F);
        p = p * z + S::all(2.011164689e-02F);
        p = p * z + S::all(-5.356698407e-02F);
        p = p * z + S::all(1.332924303e-01F);
        p = p * z + S::all(-3.333319661e-01F);
        const V small = x + x * z * p;
        const V large = S::all(1.0F) - S::all(2.0F) / (S::all(1.0F) + exp(x + x));
        return z < S::all(0.49F) ? small : large;
    }
    struct Normal {
        V below;  ///< the normal distribution up to x
        V at;     ///< its density
    };
    /// below(-|x|) = e^(-x^2/2) times a polynomial in 1 / (1 + |x|/4), relative error 6e-8 down to -14.
    static HEED_INLINE Normal normal(V x) {
        const V size = S::max(x, -x);
        const V t = S::all(1.0F) / (S::all(1.0F) + S::all(0.25F) * size);
        const V e = exp(x * x * S::all(-0.5F));
        V p = S::all(2.572356581e-02F);
        p = p * t + S::all(-1.528097108e-01F);
        p = p * t + S::all(2.961226634e-01F);
        p = p * t + S::all(-2.057842562e-01F);
        p = p * t + S::all(2.017590903e-01F);
        p = p * t + S::all(3.292750707e-02F);
        p = p * t + S::all(1.037468037e-01F);
        p = p * t + S::all(9.851682584e-02F);
        p = p * t + S::all(9.979748239e-02F);
        const V tail = e * p * t;
        return {x < S::all(0.0F) ? tail : S::all(1.0F) - tail, e * S::all(0.3989422804014327F)};
    }
};

}  // namespace heed::cpu
