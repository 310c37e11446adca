#include <heed/elementwise.h>
#include <heed/linear.h>
#include <heed/matmul.h>
#include <heed/tensor.h>

#include "ops/linear.h"
#include "ops/row_checks.h"

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
    return AnyView(view.dtype(), view.data(), Shape{count, columns}, Shape{step, rows.stride});
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
                   Shape(std::span<const std::int64_t>(steps)));
}

View transposed(const View& matrix) {
    Shape shape = matrix.shape(), strides = matrix.strides();
    const int last = matrix.rank() - 1;
    std::swap(shape[last], shape[last - 1]);
    std::swap(strides[last], strides[last - 1]);
    return View(matrix.dtype(), matrix.data(), shape, strides);
}

Shape with_columns(Shape shape, std::int64_t columns) {
    shape[shape.rank() - 1] = columns;
    return shape;
}

void check_weight(const char* function, const View& x, const View& weight) {
    check_rows(function, {"x", x});
    check_rows(function, {"weight", weight});
    const std::int64_t inputs = x.extent(x.rank() - 1);
    if (weight.rank() != 2 || weight.extent(1) != inputs) {
        refuse(function, "weight", "[outputs, " + std::to_string(inputs) + "], the columns of x",
               to_string(weight.shape()));
    }
}

}  // namespace

MatrixPair as_matrices(const View& a, const MutableView& b) {
    MatrixPair pair{joined(a), joined(b)};
    if (pair.a.rank() != 2 || pair.b.rank() != 2) { pair = {a, b}; }
    return pair;
}
View with_leading_ones(const View& matrix, int rank) { return leading_ones(matrix, rank); }
MutableView with_leading_ones(const MutableView& matrix, int rank) { return leading_ones(matrix, rank); }

void linear(Context& context, const View& x, const View& weight, const MutableView& out, const LinearOptions& o) {
    constexpr const char* function = "linear";
    check_weight(function, x, weight);
    const Shape shape = with_columns(x.shape(), weight.extent(0));
    check_output(function, "out", out, shape, float_types);
    check_optional_input(function, {"bias", o.bias}, Shape{weight.extent(0)});
    check_optional_output(function, {"before_activation", o.before_activation}, shape);
    check_all_apart(function, {{"out", out}, {"before_activation", o.before_activation}},
                    {{"x", x}, {"weight", weight}, {"bias", o.bias}});
    const MutableView before = o.before_activation ? o.before_activation : out;
    const MatrixPair pair = as_matrices(x, before);
    matmul(context, pair.a, with_leading_ones(transposed(weight), pair.a.rank()), pair.b);
    if (o.bias) { add(context, before, o.bias, before); }
    if (o.activation != Activation::none || o.before_activation) { activate(context, o.activation, before, out); }
}

void linear_backward(Context& context, const View& x, const View& weight, const View& dout,
                     const LinearGradients& gradients, const LinearBackwardOptions& o) {
    constexpr const char* function = "linear_backward";
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
    check_all_apart(function, {{"dx", gradients.dx}, {"dweight", gradients.dweight}, {"dbias", gradients.dbias}},
                    {{"x", x}, {"weight", weight}, {"dout", dout}, {"before_activation", o.before_activation}});
    Tensor after;
    View dz = dout;
    if (o.activation != Activation::none) {
        after = Tensor::uninitialised(dout.dtype(), shape);
        activate_backward(context, o.activation, o.before_activation, dout, after);
        dz = after;
    }
    if (gradients.dx) {
        const MatrixPair pair = as_matrices(dz, gradients.dx);
        matmul(context, pair.a, with_leading_ones(weight, pair.a.rank()), pair.b);
    }
    if (gradients.dweight) {
        View a = joined(dz), b = joined(x);
        if (a.rank() != 2 || b.rank() != 2) { a = dz, b = x; }
        matmul(context, transposed(a), b, with_leading_ones(gradients.dweight, a.rank()),
               {.beta = gradients.accumulate ? 1.0 : 0.0});
    }
    if (gradients.dbias) { sum_leading(context, dz, gradients.dbias, {.accumulate = gradients.accumulate}); }
}

}  // namespace heed
