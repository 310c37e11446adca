#pragma once
/// Checks and addresses for operations on tensors [..., N] that are seen as rows.

#include "base/pool.h"
#include "kernel/tensor_rows.h"
#include "ops/checks.h"

#include <heed/context.h>

#include <algorithm>
#include <span>
#include <vector>

namespace heed {

/// An argument and its name in error messages.
struct ArgumentView {
    const char* name;
    View view;
};

/// A float tensor of at least one axis.
void check_rows(Caller function, const ArgumentView& x);
/// A float tensor of this shape; an absent one passes where it is optional.
void check_input(Caller function, const ArgumentView& x, const Shape& shape);
void check_optional_input(Caller function, const ArgumentView& x, const Shape& shape);
/// An output of this shape and any float type, or absent.
void check_optional_output(Caller function, const ArgumentView& x, const Shape& shape);
/// Outputs may be an input itself, element for element, but share nothing otherwise.
void check_in_place(const char* function, const ArgumentView& output, std::initializer_list<ArgumentView> inputs);
/// Outputs share nothing with one another, nor with these inputs.
void check_all_disjoint(const char* function, std::initializer_list<ArgumentView> outputs,
                        std::initializer_list<ArgumentView> inputs);
/// A finite number.
void check_finite(const char* function, const char* argument, double value);

/// Numbers in a tensor of i32 or i64 of this shape, each 0..classes-1 or `other`.
std::vector<std::int64_t> checked_ids(const char* function, const char* argument, const View& ids, std::int64_t classes,
                                      const std::int64_t* other);

Shape without_last_axis(const Shape& shape);
/// The last axis is the columns, everything before it rows.
RowsShape rows_shape(const Shape& shape);
/// Absent views give absent rows.
TensorRows rows_of(const View& view);
TensorRows rows_of(const MutableView& view);
/// As rows of a longer tensor that this one's rows are repeated for, along axes that it lacks.
TensorRows repeated_rows_of(const View& view, const Shape& shape);
/// Are all of them row-major, so that they may be seen as one long row?
bool all_contiguous(std::initializer_list<View> views);
/// The whole of a row-major tensor as one row.
TensorRows one_row_of(const View& view);

/// Does anything hold double? Then the reference, which works in double, computes it.
bool any_wide(std::initializer_list<View> views);

/// For references: runs rows(begin, end) over all rows, in tasks whose sizes depend on the shape alone.
template <class Rows>
void for_rows(detail::Pool& pool, const RowsShape& shape, double operations_per_number, Rows&& rows) {
    if (shape.rows == 0 || shape.columns == 0) { return; }
    constexpr std::int64_t numbers_per_task = 8192;
    const std::int64_t step = std::max<std::int64_t>(1, numbers_per_task / shape.columns);
    const double operations =
        static_cast<double>(shape.rows) * static_cast<double>(shape.columns) * operations_per_number;
    const std::int64_t tasks = (shape.rows + step - 1) / step;
    detail::parallel(pool, tasks, detail::effort_for(operations),
                     [&](std::int64_t task, int) { rows(task * step, std::min(shape.rows, (task + 1) * step)); });
}

}  // namespace heed
