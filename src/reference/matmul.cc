#include "reference/matmul.h"

#include "base/dispatch.h"

#include <vector>

namespace heed::reference {
namespace {

double at(const MatrixAddress& x, std::int64_t offset, std::int64_t row, std::int64_t column) {
    return read_number(x.dtype, x.data, offset + row * x.row_stride + column * x.column_stride);
}

}  // namespace

void matmul_row(const MatmulProblem& p, std::int64_t n, std::int64_t m) {
    const MatmulOffsets outer = offsets_of(p.outer, n);
    std::vector<double> sum(static_cast<std::size_t>(p.columns), 0);
    for (std::int64_t s = 0; s < p.summed.elements; ++s) {
        const MatmulOffsets summed = offsets_of(p.summed, s);
        for (std::int64_t k = 0; k < p.depth; ++k) {
            const double x = at(p.a, outer.a + summed.a, m, k);
            for (std::int64_t column = 0; column < p.columns; ++column) {
                sum[static_cast<std::size_t>(column)] += x * at(p.b, outer.b + summed.b, k, column);
            }
        }
    }
    for (std::int64_t column = 0; column < p.columns; ++column) {
        const double before = p.beta == 0 ? 0 : p.beta * at(p.c, outer.c, m, column);
        write_number(p.c.dtype, p.c.data, outer.c + m * p.c.row_stride + column * p.c.column_stride,
                     p.alpha * sum[static_cast<std::size_t>(column)] + before);
    }
}

Kernel<MatmulProblem> matmul_kernel() {
    return reference_kernel<MatmulProblem>([](detail::Place& place, const MatmulProblem& p) {
        const std::int64_t rows = p.outer.elements * p.rows;
        detail::parallel(*place.pool, rows, p.depth * p.columns > 1024,
                         [&](std::int64_t n, int) { matmul_row(p, n / p.rows, n % p.rows); });
    });
}

}  // namespace heed::reference
