#pragma once
#include "cpu/layers/activation.h"
#include "kernel/linear_problem.h"

namespace heed::cpu {

HEED_INLINE char* element_at(const MatrixAddress& x, std::int64_t row, std::int64_t column) {
    return x.data + (row * x.row_stride + column * x.column_stride) * element_bytes(x.dtype);
}

/// Numbers of a row: where they lie if they are floats side by side, else in `buffer`.
template <class Isa>
HEED_INLINE const float* floats_at(const MatrixAddress& x, std::int64_t row, std::int64_t column, std::int64_t count,
                                   float* buffer) {
    const char* from = element_at(x, row, column);
    if (x.dtype == DType::f32 && x.column_stride == 1) { return reinterpret_cast<const float*>(from); }
    load_row<Isa>(x.dtype, from, x.column_stride, count, buffer);
    return buffer;
}

/// What a linear layer does to sums: columns [column, column + count) of row `row` of C. `buffer` has room for them.
template <class Isa>
HEED_NOINLINE void finish_row(const LinearProblem& problem, std::int64_t row, std::int64_t column, std::int64_t count,
                              float* sum, float* buffer) {
    const MatmulProblem& p = problem.product;
    char* to = element_at(p.c, row, column);
    const auto alpha = static_cast<float>(p.alpha), beta = static_cast<float>(p.beta);
    if (p.alpha != 1) {
        for (std::int64_t n = 0; n < count; ++n) { sum[n] *= alpha; }
    }
    if (p.beta != 0) {
        const float* old = floats_at<Isa>(p.c, row, column, count, buffer);
        for (std::int64_t n = 0; n < count; ++n) { sum[n] += beta * old[n]; }
    }
    if (problem.bias.data != nullptr) {
        const float* bias = floats_at<Isa>(problem.bias, 0, column, count, buffer);
        for (std::int64_t n = 0; n < count; ++n) { sum[n] += bias[n]; }
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

/// A block of C.
struct BlockOfRows {
    std::int64_t row, rows, column, columns;
};

/// finish_row for every row of a block, from rows of `sum` that are `stride` apart.
template <class Isa>
HEED_NOINLINE void finish_rows(const LinearProblem& problem, const BlockOfRows& of, float* sum, std::int64_t stride,
                               float* buffer) {
    const MatmulProblem& p = problem.product;
    const bool plain =
        p.alpha == 1 && p.beta == 0 && problem.before.data == nullptr && problem.activation == Activation::none;
    if (!plain) {
        for (std::int64_t m = 0; m < of.rows; ++m) {
            finish_row<Isa>(problem, of.row + m, of.column, of.columns, sum + m * stride, buffer);
        }
        return;
    }
    const bool biased = problem.bias.data != nullptr;
    const float* bias = biased ? floats_at<Isa>(problem.bias, 0, of.column, of.columns, buffer) : nullptr;
    for (std::int64_t m = 0; m < of.rows; ++m) {
        float* line = sum + m * stride;
        for (std::int64_t n = 0; biased && n < of.columns; ++n) { line[n] += bias[n]; }
        store_row<Isa>(p.c.dtype, element_at(p.c, of.row + m, of.column), p.c.column_stride, of.columns, line, 1.0F);
    }
}

}  // namespace heed::cpu
