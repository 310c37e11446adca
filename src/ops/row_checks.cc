#include "ops/row_checks.h"

#include "base/dispatch.h"
#include "base/overlap.h"

#include <cmath>

namespace heed {

void check_rows(Caller function, const ArgumentView& x) {
    if (!x.view) { refuse(function, x.name, "a tensor", "none"); }
    if (x.view.rank() < 1) { refuse(function, x.name, "at least 1 axis", to_string(x.view.shape())); }
    check_memory(function, x.name, x.view);
    check_dtype(function, x.name, x.view, float_types);
}

void check_input(Caller function, const ArgumentView& x, const Shape& shape) {
    if (!x.view) { refuse(function, x.name, "a tensor of shape " + to_string(shape), "none"); }
    check_optional_input(function, x, shape);
}

void check_optional_input(Caller function, const ArgumentView& x, const Shape& shape) {
    if (!x.view) { return; }
    if (!(x.view.shape() == shape)) { refuse(function, x.name, to_string(shape), to_string(x.view.shape())); }
    check_memory(function, x.name, x.view);
    check_dtype(function, x.name, x.view, float_types);
}

void check_optional_output(Caller function, const ArgumentView& x, const Shape& shape) {
    if (x.view) { check_output(function, x.name, x.view, shape, float_types); }
}

void check_in_place(const char* function, const ArgumentView& output, std::initializer_list<ArgumentView> inputs) {
    if (!output.view) { return; }
    for (const ArgumentView& input : inputs) {
        if (!input.view || same_memory(output.view, input.view)) { continue; }
        check_disjoint(function, output.name, output.view, input.name, input.view);
    }
}

void check_all_disjoint(const char* function, std::initializer_list<ArgumentView> outputs,
                        std::initializer_list<ArgumentView> inputs) {
    for (const ArgumentView* output = outputs.begin(); output != outputs.end(); ++output) {
        if (!output->view) { continue; }
        for (const ArgumentView& input : inputs) {
            if (input.view) { check_disjoint(function, output->name, output->view, input.name, input.view); }
        }
        for (const ArgumentView* other = outputs.begin(); other != output; ++other) {
            if (other->view) { check_disjoint(function, output->name, output->view, other->name, other->view); }
        }
    }
}

void check_finite(const char* function, const char* argument, double value) {
    if (!std::isfinite(value)) { refuse(function, argument, "a finite number", std::to_string(value)); }
}

std::vector<std::int64_t> checked_ids(const char* function, const char* argument, const View& ids, std::int64_t classes,
                                      const std::int64_t* other) {
    if (!ids) { refuse(function, argument, "a tensor", "none"); }
    check_memory(function, argument, ids);
    check_dtype(function, argument, ids, {DType::i64, DType::i32});
    const std::int64_t count = ids.shape().elements();
    std::vector<std::int64_t> result(static_cast<std::size_t>(count));
    for (std::int64_t n = 0; n < count; ++n) {
        std::int64_t offset = 0, rest = n;
        for (int axis = ids.rank() - 1; axis >= 0; --axis) {
            offset += rest % ids.extent(axis) * ids.stride(axis);
            rest /= ids.extent(axis);
        }
        const std::int64_t id = read_integer(ids.dtype(), ids.data(), offset);
        const bool fits = (id >= 0 && id < classes) || (other != nullptr && id == *other);
        if (!fits) {
            refuse(function, std::string(argument) + "[" + std::to_string(n) + "]",
                   "0 to " + std::to_string(classes - 1) + (other == nullptr ? "" : " or " + std::to_string(*other)),
                   std::to_string(id));
        }
        result[static_cast<std::size_t>(n)] = id;
    }
    return result;
}

Shape without_last_axis(const Shape& shape) {
    return Shape(std::span(shape.begin(), static_cast<std::size_t>(shape.rank() - 1)));
}

RowsShape rows_shape(const Shape& shape) { return {without_last_axis(shape).elements(), shape[shape.rank() - 1]}; }

namespace {

/// Appends an axis behind the others, joining it to the last one where memory runs on.
void append_axis(TensorRows& rows, std::int64_t extent, std::int64_t step) {
    if (extent == 1) { return; }
    if (rows.axes > 0 && rows.step[rows.axes - 1] == extent * step) {
        rows.extent[rows.axes - 1] *= extent;
        rows.step[rows.axes - 1] = step;
        return;
    }
    rows.extent[rows.axes] = extent;
    rows.step[rows.axes] = step;
    ++rows.axes;
}

}  // namespace

TensorRows rows_of(const View& view) {
    TensorRows rows;
    if (!view) { return rows; }
    rows.present = true;
    rows.dtype = view.dtype();
    rows.data = static_cast<char*>(const_cast<void*>(view.data()));
    rows.stride = view.stride(view.rank() - 1);
    for (int axis = 0; axis < view.rank() - 1; ++axis) { append_axis(rows, view.extent(axis), view.stride(axis)); }
    return rows;
}
TensorRows rows_of(const MutableView& view) { return rows_of(View(view)); }

TensorRows repeated_rows_of(const View& view, const Shape& shape) {
    TensorRows rows;
    if (!view) { return rows; }
    const int lacking = shape.rank() - view.rank();
    rows.present = true;
    rows.dtype = view.dtype();
    rows.data = static_cast<char*>(const_cast<void*>(view.data()));
    rows.stride = view.stride(view.rank() - 1);
    for (int axis = 0; axis < shape.rank() - 1; ++axis) {
        append_axis(rows, shape[axis], axis < lacking ? 0 : view.stride(axis - lacking));
    }
    return rows;
}

bool all_contiguous(std::initializer_list<View> views) {
    for (const View& view : views) {
        if (!view) { continue; }
        std::int64_t stride = 1;
        for (int axis = view.rank() - 1; axis >= 0; --axis) {
            if (view.extent(axis) != 1 && view.stride(axis) != stride) { return false; }
            stride *= view.extent(axis);
        }
    }
    return true;
}

TensorRows one_row_of(const View& view) {
    TensorRows rows;
    if (!view) { return rows; }
    rows.present = true;
    rows.dtype = view.dtype();
    rows.data = static_cast<char*>(const_cast<void*>(view.data()));
    return rows;
}

bool any_wide(std::initializer_list<View> views) {
    return std::any_of(views.begin(), views.end(), [](const View& x) { return x && x.dtype() == DType::f64; });
}

}  // namespace heed
