#pragma once
#include <heed/positions.h>

#include "base/dispatch.h"

#include <span>

namespace heed {

/// A checked rotation. Forward, backward and rerotate differ in the frequencies alone: f, -f, and f_to - f_from.
struct RopeProblem {
    View x;           ///< [B,H,T,D]
    MutableView out;  ///< the same shape; x itself where `in_place`
    bool in_place = false;
    View positions;  ///< [B,T], [1,T] or absent
    std::int64_t first = 0;
    std::span<const double> frequencies;  ///< one a pair; the caller's
    double factor = 1;                    ///< on cos and sin
    Pairing pairing = Pairing::halves;

    std::int64_t pairs() const { return static_cast<std::int64_t>(frequencies.size()); }
    std::int64_t position(std::int64_t b, std::int64_t t) const {
        if (!positions) { return first + t; }
        const std::int64_t row = positions.extent(0) == 1 ? 0 : b;
        return read_integer(positions.dtype(), positions.data(), row * positions.stride(0) + t * positions.stride(1));
    }
};

}  // namespace heed
