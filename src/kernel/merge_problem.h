#pragma once
#include <heed/merge.h>

#include "base/dispatch.h"
#include "base/pool.h"

#include <algorithm>
#include <vector>

namespace heed {

/// A checked call: every shape agrees. Kernels trust it.
struct MergeProblem {
    std::span<const PartialResult> parts;
    std::int64_t rows = 0;
    std::int64_t size = 0;  ///< E

    MutableView out, lse;  // forward

    View dout, dlse;  // backward
    std::span<const PartialGradient> gradients;
};

/// Offset of row n, counted row-major over the first `axes` axes.
template <class AnyView>
std::int64_t row_offset(const AnyView& view, int axes, std::int64_t n) {
    std::int64_t offset = 0;
    for (int axis = axes - 1; axis >= 0; --axis) {
        offset += n % view.extent(axis) * view.stride(axis);
        n /= view.extent(axis);
    }
    return offset;
}

/// The weights w_n of one row, what every kernel shares; 0 for parts that saw no key.
struct MergeWeights {
    std::vector<double> weight;  ///< [N]
    std::vector<char> seen;      ///< [N]: the part saw a key
    double lse = 0;

    void compute(const MergeProblem& problem, std::int64_t row);
};

/// rows(problem, begin, end) for all rows, on threads where they pay.
template <class Rows>
void for_all_rows(detail::Pool& pool, const MergeProblem& problem, Rows rows) {
    constexpr std::int64_t rows_per_task = 64;  // taking a task costs nothing beside the work
    constexpr double numbers_worth_waking = 1e5;
    const double numbers = static_cast<double>(problem.rows) * static_cast<double>(problem.size) *
                           static_cast<double>(problem.parts.size());
    const std::int64_t tasks = (problem.rows + rows_per_task - 1) / rows_per_task;
    detail::parallel(pool, tasks, numbers > numbers_worth_waking, [&](std::int64_t task, int) {
        rows(problem, task * rows_per_task, std::min(problem.rows, (task + 1) * rows_per_task));
    });
}

}  // namespace heed
