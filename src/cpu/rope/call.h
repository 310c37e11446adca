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
    std::int64_t padded_pairs = 0;        ///< whole vectors
    const double* frequencies = nullptr;  ///< [padded_pairs]
    double largest_frequency = 0;
    double factor = 1;
    bool interleaved = false;
    bool heads_inside = false;  ///< the heads of a token lie closer together than the tokens of a head

    /// Tokens that share a table of cosines and sines.
    std::int64_t block = 64;
    static constexpr std::int64_t most_block = 256;

    /// Reads wait for earlier writes whose addresses agree with theirs modulo this, even if they differ otherwise.
    static constexpr std::int64_t page = 4096;
};

}  // namespace heed::cpu
