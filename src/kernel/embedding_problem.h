#pragma once
#include "kernel/tensor_rows.h"

#include <span>

namespace heed {

/// A checked call of <heed/embedding.h>.
struct EmbeddingProblem {
    std::span<const std::int64_t> ids;  ///< one for each row of out or dout
    std::int64_t columns = 0;
    std::int64_t classes = 0;  ///< V
    double scale = 1;
    TensorRows table, out;
    // Backward.
    TensorRows dout, dtable;
    bool accumulate = false;
    std::int64_t padding_id = -1;

    bool wide() const { return any_wide_rows(table, out, dout, dtable); }
};

}  // namespace heed
