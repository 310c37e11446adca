#include <heed/elementwise.h>

#include "base/place.h"
#include "cpu/layers/layers.h"
#include "cuda/layers.h"
#include "ops/row_checks.h"
#include "reference/elementwise.h"

#include <vector>

namespace heed {
namespace {

void elementwise_by_reference(detail::Place& place, const ElementwiseProblem& p) {
    for_rows(*place.pool, p.shape, 1,
             [&](std::int64_t begin, std::int64_t end) { reference::elementwise(p, begin, end); });
}
void sum_leading_by_reference(detail::Place& place, const SumProblem& p) {
    for_rows(*place.pool, p.shape, static_cast<double>(p.repeats),
             [&](std::int64_t begin, std::int64_t end) { reference::sum_leading(p, begin, end); });
}

void row_totals_by_reference(detail::Place& place, const RowTotalsProblem& p) {
    for_rows(*place.pool, p.shape, 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) { p.sums[row] = reference::sum(p.x, row, p.shape.columns); }
    });
}

std::span<const Kernel<ElementwiseProblem>> elementwise_kernel_list() {
    static const auto list =
        kernel_list<ElementwiseProblem>({cuda::elementwise_kernels(),
                                         cpu::elementwise_kernels(),
                                         {reference_kernel<ElementwiseProblem>(elementwise_by_reference)}});
    return list;
}
std::span<const Kernel<SumProblem>> sum_leading_kernel_list() {
    static const auto list = kernel_list<SumProblem>({cuda::sum_leading_kernels(),
                                                      cpu::sum_leading_kernels(),
                                                      {reference_kernel<SumProblem>(sum_leading_by_reference)}});
    return list;
}

void run(Context& context, const char* function, const ElementwiseProblem& problem) {
    if (problem.shape.rows > 0 && problem.shape.columns > 0) {
        run_forward(context, elementwise_kernel_list(), {function}, problem);
    }
}

void check_last_axes(Caller function, const ArgumentView& b, const Shape& shape) {
    check_rows(function, b);
    const Shape& of_b = b.view.shape();
    const int lacking = shape.rank() - of_b.rank();
    bool fits = lacking >= 0;
    for (int axis = 0; fits && axis < of_b.rank(); ++axis) { fits = of_b[axis] == shape[axis + lacking]; }
    if (!fits) { refuse(function, b.name, to_string(shape) + " or its last axes", to_string(of_b)); }
}

void run_elementwise(Context& context, const char* name, const View& a, const View& b, const MutableView& out,
                     ElementwiseProblem problem) {
    const Caller function(name, context);
    check_rows(function, {"a", a});
    if (b) { check_last_axes(function, {"b", b}, a.shape()); }
    check_output(function, "out", out, a.shape(), float_types);
    check_in_place(function, {"out", out}, {{"a", a}});
    if (b) { check_in_place(function, {"out", out}, {{"b", b}}); }
    check_finite(function, "alpha", problem.alpha);
    check_finite(function, "beta", problem.beta);
    const bool line = all_contiguous({a, b, out}) && (!b || b.rank() == a.rank());
    problem.shape = line ? RowsShape{1, a.shape().elements()} : rows_shape(a.shape());
    problem.a = line ? one_row_of(a) : rows_of(a);
    problem.b = line ? one_row_of(b) : repeated_rows_of(b, a.shape());
    problem.out = line ? one_row_of(out) : rows_of(out);
    run(context, function, problem);
}

}  // namespace

void add(Context& context, const View& a, const View& b, const MutableView& out, const AddOptions& options) {
    if (!b) { refuse("add", "b", "a tensor", "none"); }
    run_elementwise(context, "add", a, b, out, {.alpha = options.alpha, .beta = options.beta});
}

void multiply(Context& context, const View& a, const View& b, const MutableView& out) {
    if (!b) { refuse("multiply", "b", "a tensor", "none"); }
    run_elementwise(context, "multiply", a, b, out, {.product = true});
}

void scale(Context& context, const View& x, double factor, const MutableView& out) {
    run_elementwise(context, "scale", x, {}, out, {.alpha = factor});
}

void convert(Context& context, const View& x, const MutableView& out) {
    run_elementwise(context, "convert", x, {}, out, {});
}

void fill(Context& context, const MutableView& out, double value) {
    const Caller function("fill", context);
    check_rows(function, {"out", out});
    check_output(function, "out", out, out.shape(), float_types);
    ElementwiseProblem problem;
    problem.shape = rows_shape(out.shape());
    problem.alpha = value;
    problem.out = rows_of(out);
    run(context, "fill", problem);
}

void sum_leading(Context& context, const View& x, const MutableView& out, const SumOptions& options) {
    const Caller function("sum_leading", context);
    check_rows(function, {"x", x});
    check_last_axes(function, {"out", out}, x.shape());
    check_output(function, "out", out, out.shape(), float_types);
    check_disjoint(function, "out", out, "x", x);
    check_finite(function, "factor", options.factor);
    SumProblem problem;
    problem.shape = rows_shape(out.shape());
    problem.repeats = 1;
    for (int axis = 0; axis < x.rank() - out.rank(); ++axis) { problem.repeats *= x.extent(axis); }
    problem.factor = options.factor;
    problem.accumulate = options.accumulate;
    problem.x = rows_of(x);
    problem.out = rows_of(out);
    if (out.shape().elements() > 0) { run_forward(context, sum_leading_kernel_list(), {function}, problem); }
}

double sum(Context& context, const View& x) {
    check_rows("sum", {"x", x});
    const RowsShape shape = rows_shape(x.shape());
    std::vector<double> sums(static_cast<std::size_t>(shape.rows));
    static const std::vector<Kernel<RowTotalsProblem>> list = {
        reference_kernel<RowTotalsProblem>(row_totals_by_reference)};
    run_forward(context, std::span<const Kernel<RowTotalsProblem>>(list), {"sum"}, {shape, rows_of(x), sums.data()});
    double result = 0;
    for (const double each : sums) { result += each; }
    return result;
}

}  // namespace heed
