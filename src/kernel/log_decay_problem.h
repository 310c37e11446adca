#pragma once
#include "kernel/tensor_rows.h"

namespace heed {

/// A checked call of <heed/log_decay.h>.
struct LogDecayProblem {
    RowsShape shape;
    std::int64_t states = 0;  ///< divides the columns
    TensorRows rate;          ///< one row
    TensorRows x, out;
    TensorRows dout, dx, drate;  ///< backward
};

}  // namespace heed
