#include "cpu/matmul/matmul.h"

#include "cpu/instruction_sets.h"
#include "cpu/matmul/matmul_onednn.h"

namespace heed::cpu {
namespace {

/// Rows and columns from (row, column) to the ends given.
MatmulProblem part(MatmulProblem problem, std::int64_t row, std::int64_t row_end, std::int64_t column,
                   std::int64_t column_end) {
    const auto move = [](MatrixAddress& x, std::int64_t elements) {
        x.data += elements * static_cast<std::int64_t>(size_of(x.dtype));
    };
    move(problem.a, row * problem.a.row_stride);
    move(problem.b, column * problem.b.column_stride);
    move(problem.c, row * problem.c.row_stride + column * problem.c.column_stride);
    problem.rows = row_end - row;
    problem.columns = column_end - column;
    return problem;
}

/// oneDNN takes whole blocks; what is right of them and below, and all where its bits are not ours, the best tiles do.
void matmul_with_onednn(detail::Place& place, const MatmulProblem& problem) {
    const Kernels& own = *instruction_set().kernels;
    const MatmulDone done = matmul_onednn(*place.pool, problem, own);
    const auto rest = [&](std::int64_t row, std::int64_t row_end, std::int64_t column) {
        if (row < row_end && column < problem.columns) {
            own.matmul(*place.pool, part(problem, row, row_end, column, problem.columns));
        }
    };
    rest(0, done.rows, done.columns);
    rest(done.rows, problem.rows, 0);
}

const char* declines_tiles(const MatmulProblem& p) {
    const bool wide = p.a.dtype == DType::f64 || p.b.dtype == DType::f64 || p.c.dtype == DType::f64;
    return wide ? "float64 is for the reference" : nullptr;
}

}  // namespace

std::vector<Kernel<MatmulProblem>> matmul_kernels() {
    using Row = Kernel<MatmulProblem>;
    std::vector<Row> rows = {{.name = "onednn",
                              .what = "blocks by oneDNN, the rest in heed's own tiles",
                              .declines = declines_onednn,
                              .forward = matmul_with_onednn}};
    const auto tiles = rows_of_sets<Row>("tiles", []<const Kernels & kernels>(Row& row) {
        row.declines = declines_tiles;
        row.forward = [](detail::Place& place, const MatmulProblem& p) { kernels.matmul(*place.pool, p); };
    });
    rows.insert(rows.end(), tiles.begin(), tiles.end());
    return rows;
}

}  // namespace heed::cpu
