#pragma once
#include "kernel/tensor_rows.h"

namespace heed {

/// A checked call of <heed/norm.h>, forward or backward. Weights and biases are one row.
struct NormProblem {
    RowsShape shape;
    bool centred = true;  ///< layer norm; otherwise RMS norm
    double eps = 0;
    double weight_offset = 0;
    TensorRows weight, bias;
    TensorRows x, residual, sum, out;
    // Backward: x is s.
    TensorRows dout, dsum, dx, dweight, dbias;
    bool accumulate = false;

    bool wide() const { return any_wide_rows(weight, bias, x, residual, sum, out, dout, dsum, dx, dweight, dbias); }
};

}  // namespace heed
