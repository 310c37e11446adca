#include <heed/optimizer.h>

#include "cpu/instruction_sets.h"
#include "cpu/layers/tables.h"
#include "ops/row_checks.h"
#include "reference/adam.h"
#include "reference/elementwise.h"

#include <cmath>
#include <string>
#include <vector>

namespace heed {
namespace {

constexpr std::initializer_list<DType> moment_types = {DType::f32, DType::f64};
constexpr std::int64_t numbers_per_task = 16384;

Numbers numbers_of(const View& view) { return {view.dtype(), static_cast<char*>(const_cast<void*>(view.data()))}; }

void check_row_major(const char* function, const std::string& name, const View& view) {
    if (!all_contiguous({view})) { refuse(function, name, "row-major memory", "strides " + to_string(view.strides())); }
}

void check_parameter(const char* function, std::size_t n, const AdamParameter& p) {
    const std::string prefix = "parameters[" + std::to_string(n) + "].";
    const auto name = [&](const char* field) { return prefix + field; };
    if (!p.value) { refuse(function, name("value"), "a tensor", "none"); }
    const Shape& shape = p.value.shape();
    check_output(function, name("value").c_str(), p.value, shape, float_types);
    check_input(function, {name("gradient").c_str(), p.gradient}, shape);
    check_output(function, name("first").c_str(), p.first, shape, moment_types);
    check_output(function, name("second").c_str(), p.second, shape, moment_types);
    if (p.rounded) { check_output(function, name("rounded").c_str(), p.rounded, shape, float_types); }
    const std::string value = name("value"), first = name("first"), second = name("second"), rounded = name("rounded");
    const std::string gradient = name("gradient");
    check_all_apart(
        function,
        {{value.c_str(), p.value}, {first.c_str(), p.first}, {second.c_str(), p.second}, {rounded.c_str(), p.rounded}},
        {{gradient.c_str(), p.gradient}});
    check_row_major(function, value, p.value);
    check_row_major(function, gradient, p.gradient);
    check_row_major(function, first, p.first);
    check_row_major(function, second, p.second);
    if (p.rounded) { check_row_major(function, rounded, p.rounded); }
}

void check_adam_options(const char* function, const AdamOptions& o) {
    const auto fraction = [&](const char* name, double value) {
        if (!(value >= 0 && value < 1)) { refuse(function, name, "0 <= number < 1", std::to_string(value)); }
    };
    check_finite(function, "learning_rate", o.learning_rate);
    fraction("beta1", o.beta1);
    fraction("beta2", o.beta2);
    if (!(o.eps >= 0 && std::isfinite(o.eps))) {
        refuse(function, "eps", "a finite number from 0 up", std::to_string(o.eps));
    }
    check_finite(function, "weight_decay", o.weight_decay);
    check_finite(function, "gradient_scale", o.gradient_scale);
    if (o.step < 1) { refuse(function, "step", "1 or more", std::to_string(o.step)); }
}

AdamProblem problem_of(const AdamParameter& p, const AdamOptions& o) {
    AdamProblem problem;
    problem.count = p.value.shape().elements();
    problem.value = numbers_of(p.value);
    problem.gradient = numbers_of(p.gradient);
    problem.first = numbers_of(p.first);
    problem.second = numbers_of(p.second);
    if (p.rounded) { problem.rounded = numbers_of(p.rounded); }
    problem.gradient_scale = o.gradient_scale;
    problem.beta1 = o.beta1;
    problem.beta2 = o.beta2;
    problem.eps = o.eps;
    const double decay = p.decay ? o.weight_decay : 0;
    problem.keep = o.decoupled ? 1 - o.learning_rate * decay : 1;
    problem.decay = o.decoupled ? 0 : decay;
    const auto step = static_cast<double>(o.step);
    problem.rate = o.learning_rate / (1 - std::pow(o.beta1, step));
    problem.root = 1 / std::sqrt(1 - std::pow(o.beta2, step));
    return problem;
}

/// Runs piece(tensor, begin, end) over all of several tensors at once, in pieces that depend on their sizes alone.
template <class Piece>
void for_pieces(Context& context, std::span<const std::int64_t> counts, double operations_per_number, Piece&& piece) {
    std::vector<std::int64_t> first_task(counts.size() + 1, 0);
    double numbers = 0;
    for (std::size_t n = 0; n < counts.size(); ++n) {
        first_task[n + 1] = first_task[n] + (counts[n] + numbers_per_task - 1) / numbers_per_task;
        numbers += static_cast<double>(counts[n]);
    }
    const auto lock = context.pool().lock();
    detail::parallel(context.pool(), first_task.back(), detail::effort_for(numbers * operations_per_number),
                     [&](std::int64_t task, int) {
                         const auto after = std::upper_bound(first_task.begin(), first_task.end(), task);
                         const auto n = static_cast<std::size_t>(after - first_task.begin() - 1);
                         const std::int64_t begin = (task - first_task[n]) * numbers_per_task;
                         piece(n, task, begin, std::min(counts[n], begin + numbers_per_task));
                     });
}

}  // namespace

void adam(Context& context, std::span<const AdamParameter> parameters, const AdamOptions& options) {
    constexpr const char* function = "adam";
    check_adam_options(function, options);
    std::vector<AdamProblem> problems;
    std::vector<std::int64_t> counts;
    for (std::size_t n = 0; n < parameters.size(); ++n) {
        check_parameter(function, n, parameters[n]);
        problems.push_back(problem_of(parameters[n], options));
        counts.push_back(problems.back().count);
    }
    const cpu::LayerKernels& kernels = cpu::layers_of(*cpu::instruction_set().kernels);
    for_pieces(context, counts, 80, [&](std::size_t n, std::int64_t, std::int64_t begin, std::int64_t end) {
        const AdamProblem& p = problems[n];
        const auto wide = [](const Numbers& x) { return x.data != nullptr && x.dtype == DType::f64; };
        if (wide(p.value) || wide(p.gradient) || wide(p.first) || wide(p.second) || wide(p.rounded)) {
            reference::adam(p, begin, end);
        } else {
            kernels.adam(p, begin, end);
        }
    });
}

double global_norm(Context& context, std::span<const View> tensors) {
    constexpr const char* function = "global_norm";
    std::vector<std::int64_t> counts;
    std::int64_t pieces = 0;
    for (std::size_t n = 0; n < tensors.size(); ++n) {
        const std::string name = "tensors[" + std::to_string(n) + "]";
        check_rows(function, {name.c_str(), tensors[n]});
        check_row_major(function, name, tensors[n]);
        counts.push_back(tensors[n].shape().elements());
        pieces += (counts.back() + numbers_per_task - 1) / numbers_per_task;
    }
    std::vector<double> sums(static_cast<std::size_t>(pieces), 0);
    const cpu::LayerKernels& kernels = cpu::layers_of(*cpu::instruction_set().kernels);
    for_pieces(context, counts, 10, [&](std::size_t n, std::int64_t task, std::int64_t begin, std::int64_t end) {
        sums[static_cast<std::size_t>(task)] = tensors[n].dtype() == DType::f64
                                                   ? reference::sum_of_squares(one_row_of(tensors[n]), begin, end)
                                                   : kernels.sum_of_squares(numbers_of(tensors[n]), begin, end);
    });
    double total = 0;
    for (const double each : sums) { total += each; }
    return std::sqrt(total);
}

double clip_factor(double norm, double largest) {
    if (!(largest > 0)) { refuse("clip_factor", "largest", "a number above 0", std::to_string(largest)); }
    const double factor = largest / (norm + 1e-6);
    return factor < 1 ? factor : 1;
}

}  // namespace heed
