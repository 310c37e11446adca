#pragma once
#include <heed/activation.h>

#include "kernel/tensor_rows.h"

namespace heed {

/// A checked call of <heed/activation.h>: out = f(gate) * up, where up may be absent.
struct ActivationProblem {
    RowsShape shape;
    Activation activation = Activation::none;
    TensorRows gate, up, out;
    // Backward.
    TensorRows dout, dgate, dup;

    bool wide() const { return any_wide_rows(gate, up, out, dout, dgate, dup); }
};

}  // namespace heed
