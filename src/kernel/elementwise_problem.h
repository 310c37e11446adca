#pragma once
#include "kernel/tensor_rows.h"

namespace heed {

/// A checked call of <heed/elementwise.h>: out = alpha a + beta b, or a * b; alpha itself where there is no a.
struct ElementwiseProblem {
    RowsShape shape{};
    bool product = false;
    double alpha = 1, beta = 0;
    TensorRows a{}, b{}, out{};  ///< a and b may be absent

    bool wide() const { return any_wide_rows(a, b, out); }
};

/// out = factor * the sum over rows that repeat every shape.rows of `x` (+ out).
struct SumProblem {
    RowsShape shape{};         ///< of out
    std::int64_t repeats = 0;  ///< row r of out is the sum of rows r + n * shape.rows of x
    double factor = 1;
    bool accumulate = false;
    TensorRows x{}, out{};

    bool wide() const { return any_wide_rows(x, out); }
};

/// sums[row] = the sum of a row.
struct RowTotalsProblem {
    RowsShape shape{};
    TensorRows x{};
    double* sums = nullptr;
};

}  // namespace heed
