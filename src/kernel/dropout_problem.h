#pragma once
#include "kernel/tensor_rows.h"

namespace heed {

/// A checked call of <heed/dropout.h>.
struct DropoutProblem {
    RowsShape shape;
    double scale = 1;             ///< 1 / (1 - p)
    std::uint64_t threshold = 0;  ///< kept: word >= threshold
    std::uint64_t seed = 0;
    std::uint32_t offset = 0;
    TensorRows x, residual, out;

    bool wide() const { return any_wide_rows(x, residual, out); }
};

}  // namespace heed
