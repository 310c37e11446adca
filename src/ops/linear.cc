#include <heed/elementwise.h>
#include <heed/linear.h>
#include <heed/matmul.h>
#include <heed/tensor.h>

#include "cpu/matmul/products.h"
#include "cuda/layers.h"
#include "kernel/linear_problem.h"
#include "ops/linear.h"
#include "ops/row_checks.h"
#include "reference/linear.h"

namespace heed {
namespace {

/// [rows, N] over the same memory, or the view itself where its rows do not lie evenly.
template <class AnyView>
AnyView joined(const AnyView& view) {
    const TensorRows rows = rows_of(view);
    const std::int64_t columns = view.extent(view.rank() - 1);
    const std::int64_t count = rows_shape(view.shape()).rows;
    if (rows.axes > 1) { return view; }
    const std::int64_t step = rows.axes == 1 ? rows.step[0] : columns;
    return AnyView(view.dtype(), view.data(), Shape{count, columns}, Shape{step, rows.stride}, view.device());
}

template <class AnyView>
AnyView leading_ones(const AnyView& matrix, int rank) {
    Shape shape = matrix.shape(), strides = matrix.strides();
    std::vector<std::int64_t> extents(static_cast<std::size_t>(rank), 1), steps(static_cast<std::size_t>(rank), 0);
    for (int axis = 0; axis < matrix.rank(); ++axis) {
        extents[static_cast<std::size_t>(rank - matrix.rank() + axis)] = shape[axis];
        steps[static_cast<std::size_t>(rank - matrix.rank() + axis)] = strides[axis];
    }
    return AnyView(matrix.dtype(), matrix.data(), Shape(std::span<const std::int64_t>(extents)),
                   Shape(std::span<const std::int64_t>(steps)), matrix.device());
}

Shape with_columns(Shape shape, std::int64_t columns) {
    shape[shape.rank() - 1] = columns;
    return shape;
}

void check_weight(Caller function, const View& x, const View& weight) {
    check_rows(function, {"x", x});
    check_rows(function, {"weight", weight});
    const std::int64_t inputs = x.extent(x.rank() - 1);
    if (weight.rank() != 2 || weight.extent(1) != inputs) {
        refuse(function, "weight", "[outputs, " + std::to_string(inputs) + "], the columns of x",
               to_string(weight.shape()));
    }
}

/// Rows of tensors [..., N] as matrices: the leading axes of all are joined where all lie evenly.
struct Matrices {
    View a;
    MutableView b, c;  ///< c may be absent
};
Matrices as_matrices(const View& a, const MutableView& b, const MutableView& c = {}) {
    const Matrices flat{joined(a), joined(b), c ? joined(c) : c};
    const bool even = flat.a.rank() == 2 && flat.b.rank() == 2 && (!c || flat.c.rank() == 2);
    return even ? flat : Matrices{a, b, c};
}

template <class AnyView>
MatrixAddress address_of(const AnyView& view) {
    const int last = view.rank() - 1;
    return {view.dtype(), static_cast<char*>(const_cast<void*>(view.data())), last > 0 ? view.stride(last - 1) : 0,
            view.stride(last)};
}

LinearProblem problem_of(const View& a, const View& b, const MutableView& c, const ProductOptions& o) {
    LinearProblem problem;
    problem.product.rows = a.extent(0);
    problem.product.depth = a.extent(1);
    problem.product.columns = b.extent(1);
    problem.product.a = address_of(a);
    problem.product.b = address_of(b);
    problem.product.c = address_of(c);
    problem.product.beta = o.accumulate ? 1 : 0;
    problem.activation = o.activation;
    if (o.bias) { problem.bias = address_of(o.bias); }
    if (o.before_activation) { problem.before = address_of(o.before_activation); }
    return problem;
}

void linear_by_reference(detail::Place& place, const LinearProblem& problem) {
    for_rows(*place.pool, {problem.product.rows, problem.product.columns}, static_cast<double>(problem.product.depth),
             [&](std::int64_t begin, std::int64_t end) { reference::linear(problem, begin, end); });
}

std::span<const Kernel<LinearProblem>> linear_kernel_list() {
    static const auto list = kernel_list<LinearProblem>(
        {cuda::linear_kernels(), cpu::linear_kernels(), {reference_kernel<LinearProblem>(linear_by_reference)}});
    return list;
}

}  // namespace

View transposed(const View& matrix) {
    Shape shape = matrix.shape(), strides = matrix.strides();
    const int last = matrix.rank() - 1;
    std::swap(shape[last], shape[last - 1]);
    std::swap(strides[last], strides[last - 1]);
    return View(matrix.dtype(), matrix.data(), shape, strides, matrix.device());
}

void product(Context& context, const View& a, const View& b, const MutableView& c, const ProductOptions& o) {
    if (c.shape().elements() == 0) { return; }
    if (a.rank() == 2) {
        run_forward(context, linear_kernel_list(), {"linear"}, problem_of(a, b, c, o));
        return;
    }
    const MutableView before = o.before_activation ? o.before_activation : c;
    matmul(context, a, leading_ones(b, a.rank()), leading_ones(before, a.rank()), {.beta = o.accumulate ? 1.0 : 0.0});
    if (o.bias) { add(context, before, o.bias, before); }
    if (o.activation != Activation::none || o.before_activation) { activate(context, o.activation, before, c); }
}

void for_matrices(const View& x, const MutableView& out, const LinearOptions& o,
                  const std::function<void(const LinearProblem&)>& run) {
    const Matrices m = as_matrices(x, out, o.before_activation);
    if (m.a.rank() > 2) {
        const auto part = [](const auto& view, std::int64_t n) {
            const auto slice = view.slice(0, n, n + 1);
            const auto rest = [&](const Shape& shape) {
                return Shape(std::span(shape.begin() + 1, static_cast<std::size_t>(shape.rank() - 1)));
            };
            return std::remove_cvref_t<decltype(view)>(slice.dtype(), slice.data(), rest(slice.shape()),
                                                       rest(slice.strides()), slice.device());
        };
        for (std::int64_t n = 0; n < x.extent(0); ++n) {
            LinearOptions options = o;
            if (o.before_activation) { options.before_activation = part(o.before_activation, n); }
            for_matrices(part(x, n), part(out, n), options, run);
        }
        return;
    }
    LinearProblem problem;
    problem.product.rows = m.a.extent(0);
    problem.product.depth = m.a.extent(1);
    problem.product.a = address_of(m.a);
    problem.product.c = address_of(m.b);
    problem.activation = o.activation;
    if (o.bias) { problem.bias = address_of(o.bias); }
    if (m.c) { problem.before = address_of(m.c); }
    run(problem);
}

void for_prepared(const char* function, const View& x, const MutableView& out, const LinearOptions& o,
                  const PreparedShape& weight, const std::function<void(const LinearProblem&)>& run) {
    check_rows(function, {"x", x});
    Shape shape = x.shape();
    if (shape[shape.rank() - 1] != weight.inputs) {
        refuse(function, "x", std::to_string(weight.inputs) + " columns, the inputs of weight", to_string(shape));
    }
    shape[shape.rank() - 1] = weight.outputs;
    check_output(function, "out", out, shape, float_types);
    check_optional_input(function, {"bias", o.bias}, Shape{weight.outputs});
    check_optional_output(function, {"before_activation", o.before_activation}, shape);
    check_all_disjoint(function, {{"out", out}, {"before_activation", o.before_activation}},
                       {{"x", x}, {"bias", o.bias}});
    if (shape.elements() == 0) { return; }
    for_matrices(x, out, o, [&](LinearProblem problem) {
        problem.product.columns = weight.outputs;
        run(problem);
    });
}

void linear(Context& context, const View& x, const View& weight, const MutableView& out, const LinearOptions& o) {
    const Caller function("linear", context);
    check_weight(function, x, weight);
    const Shape shape = with_columns(x.shape(), weight.extent(0));
    check_output(function, "out", out, shape, float_types);
    check_optional_input(function, {"bias", o.bias}, Shape{weight.extent(0)});
    check_optional_output(function, {"before_activation", o.before_activation}, shape);
    check_all_disjoint(function, {{"out", out}, {"before_activation", o.before_activation}},
                       {{"x", x}, {"weight", weight}, {"bias", o.bias}});
    const Matrices matrices = as_matrices(x, out, o.before_activation);
    product(context, matrices.a, transposed(weight), matrices.b,
            {.bias = o.bias, .activation = o.activation, .before_activation = matrices.c});
}

void linear_backward(Context& context, const View& x, const View& weight, const View& dout,
                     const LinearGradients& gradients, const LinearBackwardOptions& o) {
    const Caller function("linear_backward", context);
    check_weight(function, x, weight);
    const Shape shape = with_columns(x.shape(), weight.extent(0));
    check_input(function, {"dout", dout}, shape);
    check_optional_input(function, {"before_activation", o.before_activation}, shape);
    if (o.activation != Activation::none && !o.before_activation) {
        refuse(function, "before_activation", "what linear wrote there, for " + std::string(name_of(o.activation)),
               "none");
    }
    check_optional_output(function, {"dx", gradients.dx}, x.shape());
    check_optional_output(function, {"dweight", gradients.dweight}, weight.shape());
    check_optional_output(function, {"dbias", gradients.dbias}, Shape{weight.extent(0)});
    if (o.room) { check_output(function, "room", o.room, shape, {dout.dtype()}); }
    check_all_disjoint(
        function, {{"dx", gradients.dx}, {"dweight", gradients.dweight}, {"dbias", gradients.dbias}, {"room", o.room}},
        {{"x", x}, {"weight", weight}, {"dout", dout}, {"before_activation", o.before_activation}});
    Tensor own;
    View dz = dout;
    if (o.activation != Activation::none) {
        if (!o.room) { own = Tensor::uninitialised(dout.dtype(), shape, context.device()); }
        const MutableView before = o.room ? o.room : own.view();
        activate_backward(context, o.activation, o.before_activation, dout, before);
        dz = before;
    }
    if (gradients.dx) {
        const Matrices matrices = as_matrices(dz, gradients.dx);
        product(context, matrices.a, weight, matrices.b, {.accumulate = gradients.accumulate_dx});
    }
    if (gradients.dweight) {
        View a = joined(dz), b = joined(x);
        if (a.rank() != 2 || b.rank() != 2) { a = dz, b = x; }
        product(context, transposed(a), b, gradients.dweight, {.accumulate = gradients.accumulate});
    }
    if (gradients.dbias) { sum_leading(context, dz, gradients.dbias, {.accumulate = gradients.accumulate}); }
}

}  // namespace heed
