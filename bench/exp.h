#pragma once
#include <cstdint>

#include "isa.h"

namespace heed::bench {

/// x = exp(x) to about one unit in the last place for x <= 0, 0 below -87: 2^n times a polynomial of the rest.
template <int Bytes>
HEED_BENCH_INLINE void exp_in_place(typename FloatVector<Bytes>::type& x) {
    using Float = typename FloatVector<Bytes>::type;
    using Int = typename IntegerVector<std::int32_t, Bytes>::type;
    constexpr float round_to_integer = 12582912.F;  // 1.5 * 2^23: adding it leaves the integer in the low bits
    const Float shifted = x * 1.44269504F + round_to_integer;
    const Float n = shifted - round_to_integer;
    const Float r = (x - n * 0.693145752F) - n * 1.42860677e-6F;
    Float p = r * 1.38948825e-3F + 8.37397110e-3F;
    p = p * r + 4.16678451e-2F;
    p = p * r + 1.66664854e-1F;
    p = p * r + 4.99999910e-1F;
    p = p * r + 1.F;
    p = p * r + 1.F;
    const Int exponent = reinterpret_cast<Int>(shifted) << 23;
    const Int bits = reinterpret_cast<Int>(p) + exponent;
    const Float zero = {};
    x = x < -87.F ? zero : reinterpret_cast<Float>(bits);
}

}  // namespace heed::bench
