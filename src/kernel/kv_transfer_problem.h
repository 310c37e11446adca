#pragma once
#include <heed/view.h>

#include "kernel/kv_pages.h"

#include <span>

namespace heed {

/// Rows of a cache to and from a tensor [1,G,T,D]: token t is row rows[t] of each head of the pool, counted through its
/// pages.
struct KvWriteProblem {
    View x;
    KvRows to;  ///< whose memory is written
    std::span<const std::int32_t> rows;
};
struct KvGatherProblem {
    KvRows from;
    std::span<const std::int32_t> rows;
    MutableView out;
};

}  // namespace heed
