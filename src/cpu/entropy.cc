#include "cpu/entropy.h"

#include <cstring>

/// Compiled once, for the baseline: no 64-bit arithmetic shift and no conversion of 64-bit integers, which SSE2 lacks.

namespace heed::cpu {
namespace {

constexpr int entropy_lanes = 8;  // four registers of SSE2: their chains of operations hide each other's latency
typedef double Doubles __attribute__((vector_size(8 * entropy_lanes)));
typedef std::uint64_t Words __attribute__((vector_size(8 * entropy_lanes)));

/// result = ln x of positive normal numbers. x = 2^e m with m in [sqrt(1/2), sqrt(2)), ln m = 2 artanh((m - 1) / (m +
/// 1)).
inline __attribute__((always_inline)) void natural_log(const Doubles& x, Doubles& result) {
    constexpr std::uint64_t one = 0x3ff0000000000000, root_of_half = 0x3fe6a09e667f3bcd, fraction = 0x000fffffffffffff;
    const Words shifted = Words(x) + (one - root_of_half);
    // The exponent, still biased by 1023, in the lowest bits of 2^52: a whole number without a conversion.
    const Doubles e = Doubles((shifted >> 52) | 0x4330000000000000) - (0x1p52 + 1023);
    const Doubles m = Doubles((shifted & fraction) + root_of_half);
    const Doubles t = (m - 1.0) / (m + 1.0);
    // artanh(t) / t as a polynomial of t^2 <= 0.0295, interpolated at the Chebyshev nodes: within 7e-16.
    const Doubles z = t * t;
    Doubles p = Doubles{} + 0.08310908576429464;
    p = p * z + 0.09070096901432996;
    p = p * z + 0.11111431140054358;
    p = p * z + 0.1428571206916208;
    p = p * z + 0.20000000005603252;
    p = p * z + 0.3333333333333104;
    p = p * z + 1.0;
    result = e * 0.69314718055994530942 + 2.0 * t * p;
}

template <class Weight>
double entropy_of(const Weight* weights, std::int64_t count) {
    typedef Weight Loaded __attribute__((vector_size(sizeof(Weight) * entropy_lanes)));
    Doubles total = {};
    const auto add = [&](const Loaded& some) {
        const Doubles w = __builtin_convertvector(some, Doubles);
        Doubles logarithm;
        natural_log(w, logarithm);
        const Doubles term = w * logarithm;  // NaN for NaN, whatever becomes of its logarithm
        total -= w == 0.0 ? Doubles{} : term;
    };
    std::int64_t n = 0;
    for (; n + entropy_lanes <= count; n += entropy_lanes) {
        Loaded some;
        std::memcpy(&some, weights + n, sizeof(some));
        add(some);
    }
    if (n < count) {
        Loaded some = {};
        std::memcpy(&some, weights + n, sizeof(Weight) * static_cast<std::size_t>(count - n));
        add(some);
    }
    double result = 0;
    for (int lane = 0; lane < entropy_lanes; ++lane) { result += total[lane]; }
    return result;
}

}  // namespace

double entropy(const float* weights, std::int64_t count) { return entropy_of(weights, count); }
double entropy(const double* weights, std::int64_t count) { return entropy_of(weights, count); }

}  // namespace heed::cpu
