#include <heed/merge.h>

#include "base/overlap.h"
#include "cpu/instruction_sets.h"
#include "ops/attention_checks.h"
#include "reference/merge.h"

#include <string>
#include <vector>

namespace heed {
namespace {

/// Rows that one task takes: enough that taking it costs nothing beside the work.
constexpr std::int64_t rows_per_task = 64;
constexpr double numbers_worth_waking = 1e5;

Shape without_last(const Shape& shape) {
    return Shape(std::span(shape.begin(), static_cast<std::size_t>(shape.rank() - 1)));
}

std::string part_name(std::size_t n, const char* field) { return "parts[" + std::to_string(n) + "]." + field; }

void check_input(const char* function, const std::string& name, const View& view, const Shape& shape,
                 std::initializer_list<DType> dtypes) {
    if (!view) { refuse(function, name, "a tensor of shape " + to_string(shape), "none"); }
    if (!(view.shape() == shape)) { refuse(function, name, to_string(shape), to_string(view.shape())); }
    check_memory(function, name.c_str(), view);
    check_dtype(function, name.c_str(), view, dtypes);
}

constexpr auto wide_floats = {DType::f32, DType::f64};

MergeProblem checked_parts(const char* function, std::span<const PartialResult> parts) {
    if (parts.empty()) { refuse(function, "parts", "at least one part", "none"); }
    const View& first = parts[0].out;
    if (!first) { refuse(function, "parts[0].out", "a tensor", "none"); }
    if (first.rank() < 1) { refuse(function, "parts[0].out", "at least 1 axis", to_string(first.shape())); }
    const Shape shape = first.shape();
    const Shape rows = without_last(shape);
    for (std::size_t n = 0; n < parts.size(); ++n) {
        check_input(function, part_name(n, "out"), parts[n].out, shape, float_types);
        check_input(function, part_name(n, "lse"), parts[n].lse, rows, wide_floats);
    }
    MergeProblem problem;
    problem.parts = parts;
    problem.rows = rows.elements();
    problem.size = shape[shape.rank() - 1];
    return problem;
}

void check_result(const char* function, const MergeProblem& problem, const MutableView& out, const MutableView& lse) {
    check_output(function, "out", out, problem.parts[0].out.shape(), float_types);
    if (lse) { check_output(function, "lse", lse, problem.parts[0].lse.shape(), wide_floats); }
    check_apart(function, "lse", lse, "out", out);
    for (std::size_t n = 0; n < problem.parts.size(); ++n) {
        const auto& [part_out, part_lse] = problem.parts[n];
        if (!same_memory(out, part_out)) { check_apart(function, "out", out, part_name(n, "out"), part_out); }
        check_apart(function, "out", out, part_name(n, "lse"), part_lse);
        check_apart(function, "lse", lse, part_name(n, "out"), part_out);
        if (lse && !same_memory(lse, part_lse)) { check_apart(function, "lse", lse, part_name(n, "lse"), part_lse); }
    }
}

void check_gradients(const char* function, const MergeProblem& problem) {
    const Shape shape = problem.parts[0].out.shape();
    const Shape rows = problem.parts[0].lse.shape();
    if (problem.gradients.size() != problem.parts.size()) {
        refuse(function, "gradients", std::to_string(problem.parts.size()) + ", one for each part",
               std::to_string(problem.gradients.size()));
    }
    struct Named {
        std::string name;
        View view;
    };
    std::vector<Named> outputs;
    std::vector<Named> inputs = {{"dout", problem.dout}, {"dlse", problem.dlse}};
    for (std::size_t n = 0; n < problem.parts.size(); ++n) {
        const std::string prefix = "gradients[" + std::to_string(n) + "].";
        const auto& [dout, dlse] = problem.gradients[n];
        if (dout) { check_output(function, (prefix + "dout").c_str(), dout, shape, float_types); }
        if (dlse) { check_output(function, (prefix + "dlse").c_str(), dlse, rows, wide_floats); }
        outputs.push_back({prefix + "dout", dout});
        outputs.push_back({prefix + "dlse", dlse});
        inputs.push_back({part_name(n, "out"), problem.parts[n].out});
        inputs.push_back({part_name(n, "lse"), problem.parts[n].lse});
    }
    for (std::size_t n = 0; n < outputs.size(); ++n) {
        for (const Named& input : inputs) {
            check_apart(function, outputs[n].name, outputs[n].view, input.name, input.view);
        }
        for (std::size_t m = 0; m < n; ++m) {
            check_apart(function, outputs[n].name, outputs[n].view, outputs[m].name, outputs[m].view);
        }
    }
}

/// Does anything hold double? Then the reference, which works in double, computes it.
bool is_wide(const MergeProblem& problem) {
    const auto wide = [](const View& view) { return view && view.dtype() == DType::f64; };
    bool any = wide(problem.out) || wide(problem.dout);
    for (const PartialResult& part : problem.parts) { any = any || wide(part.out); }
    for (const PartialGradient& gradient : problem.gradients) { any = any || wide(gradient.dout); }
    return any;
}

/// Row n of [...,E]. Kernels read and write rows through one type.
template <class AnyView>
cpu::RowAddress row_of(const AnyView& view, std::int64_t n) {
    const int last = view.rank() - 1;
    const std::int64_t bytes = row_offset(view, last, n) * static_cast<std::int64_t>(size_of(view.dtype()));
    return {view.dtype(), static_cast<char*>(const_cast<void*>(view.data())) + bytes, view.stride(last)};
}
void put_lse(const MutableView& lse, std::int64_t n, double value) {
    write_number(lse.dtype(), lse.data(), row_offset(lse, lse.rank(), n), value);
}

void merge_rows(const MergeProblem& p, std::int64_t begin, std::int64_t end) {
    const cpu::RowFunctions& rows = cpu::instruction_set().kernels->rows;
    reference::MergeWeights w;
    std::vector<cpu::RowAddress> seen;
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

void merge_backward_rows(const MergeProblem& p, std::int64_t begin, std::int64_t end) {
    const cpu::RowFunctions& rows = cpu::instruction_set().kernels->rows;
    reference::MergeWeights w;
    std::vector<double> along(p.parts.size());
    for (std::int64_t row = begin; row < end; ++row) {
        w.compute(p, row);
        const cpu::RowAddress dout = row_of(p.dout, row);
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

template <class Rows>
void for_all_rows(Context& context, const MergeProblem& problem, Rows rows) {
    if (problem.rows == 0) { return; }
    const auto lock = context.pool().lock();
    const double numbers = static_cast<double>(problem.rows) * static_cast<double>(problem.size) *
                           static_cast<double>(problem.parts.size());
    const std::int64_t tasks = (problem.rows + rows_per_task - 1) / rows_per_task;
    detail::parallel(context.pool(), tasks, numbers > numbers_worth_waking, [&](std::int64_t task, int) {
        rows(problem, task * rows_per_task, std::min(problem.rows, (task + 1) * rows_per_task));
    });
}

}  // namespace

void merge(Context& context, std::span<const PartialResult> parts, const MutableView& out, const MutableView& lse) {
    MergeProblem problem = checked_parts("merge", parts);
    check_result("merge", problem, out, lse);
    problem.out = out;
    problem.lse = lse;
    for_all_rows(context, problem, is_wide(problem) ? reference::merge : merge_rows);
}

void merge_backward(Context& context, std::span<const PartialResult> parts, const View& dout,
                    std::span<const PartialGradient> gradients, const View& dlse) {
    MergeProblem problem = checked_parts("merge_backward", parts);
    check_input("merge_backward", "dout", dout, parts[0].out.shape(), float_types);
    if (dlse) { check_input("merge_backward", "dlse", dlse, parts[0].lse.shape(), wide_floats); }
    problem.dout = dout;
    problem.dlse = dlse;
    problem.gradients = gradients;
    check_gradients("merge_backward", problem);
    for_all_rows(context, problem, is_wide(problem) ? reference::merge_backward : merge_backward_rows);
}

}  // namespace heed
