#pragma once
#include <heed/rotary.h>

#include "base/dispatch.h"

#include <optional>
#include <span>

namespace heed {

/// A checked rotation by given cosines and sines. Backward is a rotation the other way.
struct RotateProblem {
    View x;           ///< [B,H,T,D]
    MutableView out;  ///< the same shape; x itself where `in_place`
    bool in_place = false;
    bool back = false;
    View cosine, sine;  ///< [B,T,n], [1,T,n], or beside positions [1,P,n]
    View positions;     ///< [B,T], [1,T] or absent: rows of the tables
    Pairing pairing = Pairing::halves;

    std::int64_t pairs() const { return cosine.extent(2); }
    /// Offset of the row of token t in cosine or sine.
    std::int64_t row(const View& table, std::int64_t b, std::int64_t t) const {
        if (!positions) { return (table.extent(0) == 1 ? 0 : b) * table.stride(0) + t * table.stride(1); }
        const std::int64_t place = (positions.extent(0) == 1 ? 0 : b) * positions.stride(0) + t * positions.stride(1);
        return read_integer(positions.dtype(), positions.data(), place) * table.stride(1);
    }
};

/// A checked call of rotary_tables: tables [B,T,n], n the pairs of all axes together.
struct RotaryTablesProblem {
    MutableView cosine, sine;
    std::span<const RotaryAxis> axes;
    std::optional<Xpos> xpos;
};

}  // namespace heed
