#include <heed/optimizer.h>

#include "cpu/layers/layers.h"
#include "cuda/training.h"
#include "ops/row_checks.h"
#include "reference/adam.h"
#include "reference/elementwise.h"

#include <cmath>
#include <string>
#include <vector>

namespace heed {
namespace {

constexpr std::initializer_list<DType> moment_types = {DType::f32, DType::f64};

Numbers numbers_of(const View& view) { return {view.dtype(), static_cast<char*>(const_cast<void*>(view.data()))}; }

void check_row_major(const char* function, const std::string& name, const View& view) {
    if (!all_contiguous({view})) { refuse(function, name, "row-major memory", "strides " + to_string(view.strides())); }
}

void check_parameter(Caller function, std::size_t n, const AdamParameter& p) {
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
    check_all_disjoint(
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

void adam_by_reference(detail::Place&, const AdamStep& step) {
    for (const AdamProblem& p : step.parameters) { reference::adam(p, 0, p.count); }
}

void squares_by_reference(detail::Place&, const SquaresProblem& p) {
    double* sum = p.sums;
    for (const SquaresProblem::Tensor& x : p.tensors) {
        TensorRows row;
        row.present = true;
        row.dtype = x.numbers.dtype;
        row.data = x.numbers.data;
        for (std::int64_t begin = 0; begin < x.count; begin += NumberPieces::size) {
            *sum++ = reference::sum_of_squares(row, begin, std::min(x.count, begin + NumberPieces::size));
        }
    }
}

std::span<const Kernel<AdamStep>> adam_kernel_list() {
    static const auto list = kernel_list<AdamStep>(
        {cuda::adam_kernels(), cpu::adam_kernels(), {reference_kernel<AdamStep>(adam_by_reference)}});
    return list;
}
std::span<const Kernel<SquaresProblem>> squares_kernel_list() {
    static const auto list = kernel_list<SquaresProblem>(
        {cuda::squares_kernels(), cpu::squares_kernels(), {reference_kernel<SquaresProblem>(squares_by_reference)}});
    return list;
}

}  // namespace

void adam(Context& context, std::span<const AdamParameter> parameters, const AdamOptions& options) {
    const Caller function("adam", context);
    check_adam_options(function, options);
    std::vector<AdamProblem> problems;
    for (std::size_t n = 0; n < parameters.size(); ++n) {
        check_parameter(function, n, parameters[n]);
        problems.push_back(problem_of(parameters[n], options));
    }
    run_forward(context, adam_kernel_list(), {function}, AdamStep{problems});
}

double global_norm(Context& context, std::span<const View> tensors) {
    const Caller function("global_norm", context);
    std::vector<SquaresProblem::Tensor> list;
    std::int64_t pieces = 0;
    for (std::size_t n = 0; n < tensors.size(); ++n) {
        const std::string name = "tensors[" + std::to_string(n) + "]";
        check_rows(function, {name.c_str(), tensors[n]});
        check_row_major(function, name, tensors[n]);
        list.push_back({numbers_of(tensors[n]), tensors[n].shape().elements()});
        pieces += NumberPieces::count(list.back().count);
    }
    std::vector<double> sums(static_cast<std::size_t>(pieces), 0);
    run_forward(context, squares_kernel_list(), {function}, SquaresProblem{list, sums.data()});
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
