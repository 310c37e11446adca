#pragma once
#include <heed/positions.h>

#include "base/dispatch.h"

#include <vector>

namespace heed {

/// Checked calls of <heed/positions.h>. Kernels trust them.
struct SinusoidProblem {
    MutableView out;  ///< [T,d]
    View positions;   ///< [1,T] or absent
    SinusoidOptions options;

    std::int64_t position(std::int64_t t) const {
        return positions ? read_integer(positions.dtype(), positions.data(), t * positions.stride(1))
                         : options.first + t;
    }
};

struct LearnedProblem {
    std::vector<std::int64_t> rows;  ///< of the table, one for each token b * T + t
    bool add = false;

    View table;       // forward
    MutableView out;  ///< [B,T,d]

    View dout;  // backward
    MutableView dtable;
};

/// Where the queries and keys of a bias stand, and the bucket of every distance.
struct RelativeBiasProblem {
    std::int64_t batch = 0, heads = 0, queries = 0, keys = 0;
    View query_positions, key_positions;
    Align align = Align::bottom_right;
    RelativeBuckets buckets;

    View table;  // forward
    MutableView bias;

    View dbias;  // backward
    MutableView dtable;

    std::int64_t query(std::int64_t b, std::int64_t i) const {
        if (query_positions) { return at(query_positions, b, i); }
        return align == Align::bottom_right ? i + keys - queries : i;
    }
    std::int64_t key(std::int64_t b, std::int64_t j) const { return key_positions ? at(key_positions, b, j) : j; }

private:
    static std::int64_t at(const View& view, std::int64_t b, std::int64_t n) {
        const std::int64_t row = view.extent(0) == 1 ? 0 : b;
        return read_integer(view.dtype(), view.data(), row * view.stride(0) + n * view.stride(1));
    }
};

}  // namespace heed
