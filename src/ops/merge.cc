#include <heed/merge.h>

#include "base/overlap.h"
#include "cpu/merge/merge.h"
#include "cuda/composition.h"
#include "ops/attention_checks.h"
#include "reference/merge.h"

#include <string>
#include <vector>

namespace heed {
namespace {

Shape without_last(const Shape& shape) {
    return Shape(std::span(shape.begin(), static_cast<std::size_t>(shape.rank() - 1)));
}

std::string part_name(std::size_t n, const char* field) { return "parts[" + std::to_string(n) + "]." + field; }

void check_input(Caller function, const std::string& name, const View& view, const Shape& shape,
                 std::initializer_list<DType> dtypes) {
    if (!view) { refuse(function, name, "a tensor of shape " + to_string(shape), "none"); }
    if (!(view.shape() == shape)) { refuse(function, name, to_string(shape), to_string(view.shape())); }
    check_memory(function, name.c_str(), view);
    check_dtype(function, name.c_str(), view, dtypes);
}

constexpr auto wide_floats = {DType::f32, DType::f64};

MergeProblem checked_parts(Caller function, std::span<const PartialResult> parts) {
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

void check_result(Caller function, const MergeProblem& problem, const MutableView& out, const MutableView& lse) {
    check_output(function, "out", out, problem.parts[0].out.shape(), float_types);
    if (lse) { check_output(function, "lse", lse, problem.parts[0].lse.shape(), wide_floats); }
    check_disjoint(function, "lse", lse, "out", out);
    for (std::size_t n = 0; n < problem.parts.size(); ++n) {
        const auto& [part_out, part_lse] = problem.parts[n];
        if (!same_memory(out, part_out)) { check_disjoint(function, "out", out, part_name(n, "out"), part_out); }
        check_disjoint(function, "out", out, part_name(n, "lse"), part_lse);
        check_disjoint(function, "lse", lse, part_name(n, "out"), part_out);
        if (lse && !same_memory(lse, part_lse)) { check_disjoint(function, "lse", lse, part_name(n, "lse"), part_lse); }
    }
}

void check_gradients(Caller function, const MergeProblem& problem) {
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
            check_disjoint(function, outputs[n].name, outputs[n].view, input.name, input.view);
        }
        for (std::size_t m = 0; m < n; ++m) {
            check_disjoint(function, outputs[n].name, outputs[n].view, outputs[m].name, outputs[m].view);
        }
    }
}

std::span<const Kernel<MergeProblem>> merge_kernel_list() {
    static const auto list =
        kernel_list<MergeProblem>({cuda::merge_kernels(), cpu::merge_kernels(), {reference::merge_kernel()}});
    return list;
}

}  // namespace

void merge(Context& context, std::span<const PartialResult> parts, const MutableView& out, const MutableView& lse) {
    const Caller caller("merge", context);
    MergeProblem problem = checked_parts(caller, parts);
    check_result(caller, problem, out, lse);
    problem.out = out;
    problem.lse = lse;
    if (problem.rows > 0) { run_forward(context, merge_kernel_list(), {"merge"}, problem); }
}

void merge_backward(Context& context, std::span<const PartialResult> parts, const View& dout,
                    std::span<const PartialGradient> gradients, const View& dlse) {
    const Caller caller("merge_backward", context);
    MergeProblem problem = checked_parts(caller, parts);
    check_input(caller, "dout", dout, parts[0].out.shape(), float_types);
    if (dlse) { check_input(caller, "dlse", dlse, parts[0].lse.shape(), wide_floats); }
    problem.dout = dout;
    problem.dlse = dlse;
    problem.gradients = gradients;
    check_gradients(caller, problem);
    if (problem.rows > 0) { run_backward(context, merge_kernel_list(), {"merge_backward"}, problem); }
}

}  // namespace heed
