#pragma once
#include "kernel/tensor_rows.h"

#include <heed/view.h>

#include <span>

namespace heed::reference {

/// Row n of `to`, of the same type, = row rows[n] of x.
void gather(const TensorRows& x, std::span<const std::int64_t> rows, std::int64_t columns, const TensorRows& to);
/// Row rows[n] of `to` = row n of x, rounded to its type.
void scatter(const TensorRows& x, std::span<const std::int64_t> rows, std::int64_t columns, const TensorRows& to);

/// All of them, in the order given.
double sum(std::span<const double> numbers);
/// to = the numbers in row-major order, rounded to its type.
void put_all(std::span<const double> numbers, const MutableView& to);

}  // namespace heed::reference
