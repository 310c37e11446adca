#pragma once
#include "kernel/tensor_rows.h"

namespace heed {

/// out = (clamp(up) + 1) g sigmoid(alpha g), g = min(gate, limit), up clamped to -limit .. limit: what experts with a
/// limit have between their products.
struct ClampedGateProblem {
    RowsShape shape;
    double limit = 0, alpha = 1;
    TensorRows gate, up, out;
    TensorRows dout, dgate, dup;  ///< backward

    bool wide() const { return any_wide_rows(gate, up, out, dout, dgate, dup); }
};

}  // namespace heed
