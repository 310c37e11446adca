#pragma once
#include "kernel/tensor_rows.h"

namespace heed {

/// The loss of rows of logits, checked. q = base everywhere, target at the target.
struct CrossEntropyProblem {
    RowsShape shape;  ///< columns: V
    const std::int64_t* targets = nullptr;
    std::int64_t ignore = -100;
    double base = 0;      ///< q where the target is not
    double target = 1;    ///< q at the target
    double gradient = 1;  ///< dlogits = gradient * (softmax - q)
    double softcap = 0;   ///< of the logits, 0: none; the gradient is that of the logits before it
    TensorRows logits, dlogits;
    double* losses = nullptr;  ///< of each row, with smoothing
    double* nlls = nullptr;    ///< of each row, without

    bool wide() const { return any_wide_rows(logits, dlogits); }
};

}  // namespace heed
