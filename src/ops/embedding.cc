#include <heed/embedding.h>

#include "cpu/layers/layers.h"
#include "cuda/layers.h"
#include "ops/row_checks.h"
#include "reference/embedding.h"

namespace heed {
namespace {

void embedding_by_reference(detail::Place& place, const EmbeddingProblem& p) {
    for_rows(*place.pool, {static_cast<std::int64_t>(p.ids.size()), p.columns}, 1,
             [&](std::int64_t begin, std::int64_t end) { reference::embedding(p, begin, end); });
}
void embedding_backward_by_reference(detail::Place&, const EmbeddingProblem& p) { reference::embedding_backward(p); }

std::span<const Kernel<EmbeddingProblem>> embedding_kernel_list() {
    static const auto list = kernel_list<EmbeddingProblem>(
        {cuda::embedding_kernels(),
         cpu::embedding_kernels(),
         {reference_kernel<EmbeddingProblem>(embedding_by_reference, embedding_backward_by_reference)}});
    return list;
}

void check_table(Caller function, const ArgumentView& table) {
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
    const Caller function("embedding", context);
    check_table(function, {"table", table});
    check_output(function, "out", out, shape_of_rows(function, ids, table.extent(1)), float_types);
    check_all_disjoint(function, {{"out", out}}, {{"table", table}, {"ids", ids}});
    check_finite(function, "scale", options.scale);
    const std::vector<std::int64_t> rows = checked_ids(function, "ids", ids, table.extent(0), nullptr);
    EmbeddingProblem problem;
    problem.ids = rows;
    problem.columns = table.extent(1);
    problem.classes = table.extent(0);
    problem.scale = options.scale;
    problem.table = rows_of(table);
    problem.out = rows_of(out);
    if (out.shape().elements() > 0) { run_forward(context, embedding_kernel_list(), {function}, problem); }
}

void embedding_backward(Context& context, const View& ids, const View& dout, const MutableView& dtable,
                        const EmbeddingBackwardOptions& options) {
    const Caller function("embedding_backward", context);
    check_table(function, {"dtable", dtable});
    check_output(function, "dtable", dtable, dtable.shape(), float_types);
    check_input(function, {"dout", dout}, shape_of_rows(function, ids, dtable.extent(1)));
    check_all_disjoint(function, {{"dtable", dtable}}, {{"dout", dout}, {"ids", ids}});
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
    if (dtable.shape().elements() > 0) { run_backward(context, embedding_kernel_list(), {function}, problem); }
}

}  // namespace heed
