#include <heed/embedding.h>

#include "cpu/instruction_sets.h"
#include "cpu/layers/layers.h"
#include "ops/row_checks.h"
#include "reference/embedding.h"

namespace heed {
namespace {

void check_table(const char* function, const NamedView& table) {
    check_rows(function, table);
    if (table.view.rank() != 2) {
        refuse(function, table.name, "2 axes [classes, size]", to_string(table.view.shape()));
    }
}

Shape with_last_axis(const Shape& shape, std::int64_t extent) {
    std::vector<std::int64_t> extents(shape.begin(), shape.end());
    extents.push_back(extent);
    return Shape(std::span<const std::int64_t>(extents));
}

Shape shape_of_rows(const char* function, const View& ids, std::int64_t columns) {
    if (!ids) { refuse(function, "ids", "a tensor", "none"); }
    if (ids.rank() >= Shape::max_rank) { refuse(function, "ids", "at most 7 axes", to_string(ids.shape())); }
    return with_last_axis(ids.shape(), columns);
}

}  // namespace

void embedding(Context& context, const View& ids, const View& table, const MutableView& out,
               const EmbeddingOptions& options) {
    constexpr const char* function = "embedding";
    check_table(function, {"table", table});
    check_output(function, "out", out, shape_of_rows(function, ids, table.extent(1)), float_types);
    check_all_apart(function, {{"out", out}}, {{"table", table}, {"ids", ids}});
    check_finite(function, "scale", options.scale);
    const std::vector<std::int64_t> rows = checked_ids(function, "ids", ids, table.extent(0), nullptr);
    EmbeddingProblem problem;
    problem.ids = rows;
    problem.columns = table.extent(1);
    problem.classes = table.extent(0);
    problem.scale = options.scale;
    problem.table = rows_of(table);
    problem.out = rows_of(out);
    if (!any_wide({table, out})) {
        const auto lock = context.pool().lock();
        cpu::embedding(context.pool(), cpu::layers_of(*cpu::instruction_set().kernels), problem);
        return;
    }
    for_rows(context, {static_cast<std::int64_t>(rows.size()), problem.columns}, 1,
             [&](std::int64_t begin, std::int64_t end) { reference::embedding(problem, begin, end); });
}

void embedding_backward(Context& context, const View& ids, const View& dout, const MutableView& dtable,
                        const EmbeddingBackwardOptions& options) {
    constexpr const char* function = "embedding_backward";
    check_table(function, {"dtable", dtable});
    check_output(function, "dtable", dtable, dtable.shape(), float_types);
    check_input(function, {"dout", dout}, shape_of_rows(function, ids, dtable.extent(1)));
    check_all_apart(function, {{"dtable", dtable}}, {{"dout", dout}, {"ids", ids}});
    check_finite(function, "scale", options.scale);
    const std::vector<std::int64_t> rows = checked_ids(function, "ids", ids, dtable.extent(0), nullptr);
    EmbeddingProblem problem;
    problem.ids = rows;
    problem.columns = dtable.extent(1);
    problem.classes = dtable.extent(0);
    problem.scale = options.scale;
    problem.accumulate = options.accumulate;
    problem.padding_id = options.padding_id;
    problem.dout = rows_of(dout);
    problem.dtable = rows_of(dtable);
    const auto lock = context.pool().lock();
    if (any_wide({dout, dtable})) {
        reference::embedding_backward(problem);
    } else {
        cpu::embedding_backward(context.pool(), cpu::layers_of(*cpu::instruction_set().kernels), problem);
    }
}

}  // namespace heed
