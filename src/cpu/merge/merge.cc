#include "cpu/merge/merge.h"

#include "cpu/instruction_sets.h"

#include <vector>

namespace heed::cpu {
namespace {

/// Does anything hold double?
bool is_wide(const MergeProblem& problem) {
    const auto wide = [](const View& view) { return view && view.dtype() == DType::f64; };
    bool any = wide(problem.out) || wide(problem.dout);
    for (const PartialResult& part : problem.parts) { any = any || wide(part.out); }
    for (const PartialGradient& gradient : problem.gradients) { any = any || wide(gradient.dout); }
    return any;
}

/// Row n of [...,E]. Kernels read and write rows through one type.
template <class AnyView>
RowAddress row_of(const AnyView& view, std::int64_t n) {
    const int last = view.rank() - 1;
    const std::int64_t bytes = row_offset(view, last, n) * static_cast<std::int64_t>(size_of(view.dtype()));
    return {view.dtype(), static_cast<char*>(const_cast<void*>(view.data())) + bytes, view.stride(last)};
}
void put_lse(const MutableView& lse, std::int64_t n, double value) {
    write_number(lse.dtype(), lse.data(), row_offset(lse, lse.rank(), n), value);
}

template <const Kernels& kernels>
void merge_rows(const MergeProblem& p, std::int64_t begin, std::int64_t end) {
    constexpr const RowFunctions& rows = kernels.rows;
    MergeWeights w;
    std::vector<RowAddress> seen;
    std::vector<float> weight;
    for (std::int64_t row = begin; row < end; ++row) {
        w.compute(p, row);
        seen.clear();
        weight.clear();
        for (std::size_t n = 0; n < p.parts.size(); ++n) {
            if (w.seen[n] == 0) { continue; }
            seen.push_back(row_of(p.parts[n].out, row));
            weight.push_back(static_cast<float>(w.weight[n]));
        }
        rows.combine(seen.data(), weight.data(), static_cast<std::int64_t>(seen.size()), p.size, row_of(p.out, row));
        if (p.lse) { put_lse(p.lse, row, w.lse); }
    }
}

template <const Kernels& kernels>
void merge_backward_rows(const MergeProblem& p, std::int64_t begin, std::int64_t end) {
    constexpr const RowFunctions& rows = kernels.rows;
    MergeWeights w;
    std::vector<double> along(p.parts.size());
    for (std::int64_t row = begin; row < end; ++row) {
        w.compute(p, row);
        const RowAddress dout = row_of(p.dout, row);
        const double dlse =
            p.dlse ? read_number(p.dlse.dtype(), p.dlse.data(), row_offset(p.dlse, p.dlse.rank(), row)) : 0;
        double mean = 0;
        for (std::size_t n = 0; n < p.parts.size(); ++n) {
            along[n] = 0;
            if (w.seen[n] == 0) { continue; }
            along[n] = static_cast<double>(rows.dot(dout, row_of(p.parts[n].out, row), p.size));
            mean += w.weight[n] * along[n];
        }
        for (std::size_t n = 0; n < p.parts.size(); ++n) {
            const PartialGradient& gradient = p.gradients[n];
            const bool seen = w.seen[n] != 0;
            const auto weight = static_cast<float>(w.weight[n]);
            if (gradient.dout) { rows.combine(&dout, &weight, seen ? 1 : 0, p.size, row_of(gradient.dout, row)); }
            if (gradient.dlse) { put_lse(gradient.dlse, row, seen ? w.weight[n] * (dlse + along[n] - mean) : 0); }
        }
    }
}

}  // namespace

std::vector<Kernel<MergeProblem>> merge_kernels() {
    using Row = Kernel<MergeProblem>;
    return rows_of_sets<Row>("weights in double, rows in float32", []<const Kernels & kernels>(Row& row) {
        row.declines = [](const MergeProblem& p) { return is_wide(p) ? "float64 is for the reference" : nullptr; };
        row.forward = [](detail::Place& place, const MergeProblem& p) {
            for_all_rows(*place.pool, p, merge_rows<kernels>);
        };
        row.backward = [](detail::Place& place, const MergeProblem& p) {
            for_all_rows(*place.pool, p, merge_backward_rows<kernels>);
        };
    });
}

}  // namespace heed::cpu
