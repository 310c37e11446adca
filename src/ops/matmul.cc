#include <heed/matmul.h>

#include "cpu/matmul/matmul.h"
#include "cuda/layers.h"
#include "ops/attention_checks.h"
#include "reference/matmul.h"

#include <cmath>

namespace heed {
namespace {

constexpr const char* matmul_name = "matmul";

void check_operand(Caller function, const char* name, const View& view, int rank) {
    if (!view) { refuse(matmul_name, name, "a tensor", "none"); }
    if (view.rank() < 2) { refuse(matmul_name, name, "at least 2 axes", to_string(view.shape())); }
    if (view.rank() != rank) {
        refuse(matmul_name, name, std::to_string(rank) + " axes as a has", to_string(view.shape()));
    }
    check_memory(function, name, view);
    check_dtype(matmul_name, name, view, float_types);
}

template <class AnyView>
MatrixAddress matrix_of(const AnyView& view) {
    const int last = view.rank() - 1;
    return {view.dtype(), static_cast<char*>(const_cast<void*>(view.data())), view.stride(last - 1), view.stride(last)};
}

/// Sorts the leading axes into those of c and those that are summed over.
void leading_axes(const View& a, const View& b, const View& c, MatmulProblem& problem) {
    for (int axis = 0; axis < a.rank() - 2; ++axis) {
        const std::int64_t longer = a.extent(axis) != 1 ? a.extent(axis) : b.extent(axis);
        const std::string of_a = std::to_string(longer);
        if (b.extent(axis) != 1 && b.extent(axis) != longer) {
            refuse(matmul_name, "b", of_a + " or 1 along axis " + std::to_string(axis) + ", as in a",
                   to_string(b.shape()));
        }
        if (c.extent(axis) != 1 && c.extent(axis) != longer && longer != 1) {
            refuse(matmul_name, "c", of_a + " or 1 along axis " + std::to_string(axis), to_string(c.shape()));
        }
        const std::int64_t extent = c.extent(axis) != 1 ? c.extent(axis) : longer;
        MatmulProblem::Axes& axes = c.extent(axis) != 1 ? problem.outer : problem.summed;
        const auto stride = [&](const View& view) { return view.extent(axis) == 1 ? 0 : view.stride(axis); };
        axes.extent[axes.count] = extent;
        axes.a[axes.count] = stride(a);
        axes.b[axes.count] = stride(b);
        axes.c[axes.count] = stride(c);
        axes.elements *= extent;
        ++axes.count;
    }
}

MatmulProblem checked(Caller function, const View& a, const View& b, const MutableView& c,
                      const MatmulOptions& options) {
    check_operand(function, "a", a, a.rank());
    check_operand(function, "b", b, a.rank());
    check_operand(function, "c", c, a.rank());
    const int row = a.rank() - 2;
    const int column = a.rank() - 1;
    MatmulProblem problem;
    problem.rows = a.extent(row);
    problem.depth = a.extent(column);
    problem.columns = b.extent(column);
    if (b.extent(row) != problem.depth) {
        refuse(matmul_name, "b", std::to_string(problem.depth) + " rows, the columns of a", to_string(b.shape()));
    }
    if (c.extent(row) != problem.rows || c.extent(column) != problem.columns) {
        refuse(matmul_name, "c", "a matrix of " + to_string(Shape{problem.rows, problem.columns}),
               to_string(c.shape()));
    }
    leading_axes(a, b, c, problem);
    check_output(function, "c", c, c.shape(), float_types);
    check_disjoint(matmul_name, "c", c, "a", a);
    check_disjoint(matmul_name, "c", c, "b", b);
    const auto finite = [](const char* name, double value) {
        if (!std::isfinite(value)) { refuse(matmul_name, name, "a finite number", std::to_string(value)); }
    };
    finite("alpha", options.alpha);
    finite("beta", options.beta);
    problem.alpha = options.alpha;
    problem.beta = options.beta;
    problem.a = matrix_of(a);
    problem.b = matrix_of(b);
    problem.c = matrix_of(c);
    return problem;
}

std::span<const Kernel<MatmulProblem>> matmul_kernel_list() {
    static const auto list =
        kernel_list<MatmulProblem>({cuda::matmul_kernels(), cpu::matmul_kernels(), {reference::matmul_kernel()}});
    return list;
}

}  // namespace

void matmul(Context& context, const View& a, const View& b, const MutableView& c, const MatmulOptions& options) {
    const MatmulProblem problem = checked({matmul_name, context}, a, b, c, options);
    if (c.shape().elements() == 0) { return; }
    run_forward(context, matmul_kernel_list(), {matmul_name}, problem);
}

}  // namespace heed
