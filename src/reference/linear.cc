#include "reference/linear.h"

#include "base/dispatch.h"
#include "reference/activation.h"

namespace heed::reference {

void linear(const LinearProblem& problem, std::int64_t begin, std::int64_t end) {
    const MatmulProblem& p = problem.product;
    const auto at = [](const MatrixAddress& x, std::int64_t row, std::int64_t column) {
        return read_number(x.dtype, x.data, row * x.row_stride + column * x.column_stride);
    };
    const auto put = [](const MatrixAddress& x, std::int64_t row, std::int64_t column, double value) {
        write_number(x.dtype, x.data, row * x.row_stride + column * x.column_stride, value);
    };
    for (std::int64_t row = begin; row < end; ++row) {
        for (std::int64_t column = 0; column < p.columns; ++column) {
            double sum = 0;
            for (std::int64_t k = 0; k < p.depth; ++k) { sum += at(p.a, row, k) * at(p.b, k, column); }
            sum *= p.alpha;
            if (p.beta != 0) { sum += p.beta * at(p.c, row, column); }
            if (problem.bias.data != nullptr) { sum += at(problem.bias, 0, column); }
            if (problem.before.data != nullptr) { put(problem.before, row, column, sum); }
            put(p.c, row, column, activated(problem.activation, sum));
        }
    }
}

}  // namespace heed::reference
