#pragma once
#include "cpu/layers/activation.h"
#include "kernel/linear_problem.h"

namespace heed::cpu {

HEED_INLINE char* element_at(const MatrixAddress& x, std::int64_t row, std::int64_t column) {
    return x.data + (row * x.row_stride + column * x.column_stride) * element_bytes(x.dtype);
}

/// What a linear layer does to sums: columns [column, column + count) of row `row` of C. `buffer` has room for them.
template <class Isa>
HEED_APART void finish_row(const LinearProblem& problem, std::int64_t row, std::int64_t column, std::int64_t count,
                           float* sum, float* buffer) {
    const MatmulProblem& p = problem.product;
    char* to = element_at(p.c, row, column);
    const auto alpha = static_cast<float>(p.alpha), beta = static_cast<float>(p.beta);
    if (p.alpha != 1) {
        for (std::int64_t n = 0; n < count; ++n) { sum[n] *= alpha; }
    }
    if (p.beta != 0) {
        load_row<Isa>(p.c.dtype, to, p.c.column_stride, count, buffer);
        for (std::int64_t n = 0; n < count; ++n) { sum[n] += beta * buffer[n]; }
    }
    if (problem.bias.data != nullptr) {
        load_row<Isa>(problem.bias.dtype, element_at(problem.bias, 0, column), problem.bias.column_stride, count,
                      buffer);
        for (std::int64_t n = 0; n < count; ++n) { sum[n] += buffer[n]; }
    }
    if (problem.before.data != nullptr) {
        store_row<Isa>(problem.before.dtype, element_at(problem.before, row, column), problem.before.column_stride,
                       count, sum, 1.0F);
    }
    if (problem.activation != Activation::none) {
        with_activation(problem.activation,
                        [&]<Activation A>() { activate_numbers<Isa, A>(sum, nullptr, count, sum); });
    }
    store_row<Isa>(p.c.dtype, to, p.c.column_stride, count, sum, 1.0F);
}

}  // namespace heed::cpu
