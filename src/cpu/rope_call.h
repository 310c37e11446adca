#pragma once
#include <heed/dtype.h>

#include <cstddef>
#include <cstdint>

namespace heed::cpu {

/// A rotation without anything that has inline functions, for code that is compiled once per instruction set.
struct RopeCall {
    struct Rows {
        char* data = nullptr;
        DType dtype = DType::f32;
        std::int64_t b = 0, h = 0, t = 0, column = 0;  ///< strides in elements
    };
    Rows x;
    Rows out;
    std::int64_t heads = 0;
    std::int64_t size = 0;  ///< numbers of a row to write: all, or the rotated ones in place
    std::int64_t pairs = 0;
    const double* frequencies = nullptr;
    double largest_frequency = 0;
    double factor = 1;
    bool interleaved = false;
    bool heads_inside = false;  ///< the heads of a token lie closer together than the tokens of a head

    static constexpr std::int64_t block = 16;  ///< tokens that share a table of cosines and sines in the first-level cache

    /// Cosines and sines of a block as the rows want them, and a row in float32.
    std::size_t scratch_floats() const {
        return static_cast<std::size_t>(block * 2 * table_row() + (size > 2 * pairs ? size : 2 * pairs));
    }
    std::int64_t table_row() const { return interleaved ? 2 * pairs : pairs; }
};

}  // namespace heed::cpu
