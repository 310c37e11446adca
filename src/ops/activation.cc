#include <heed/activation.h>

#include "cpu/layers/layers.h"
#include "cuda/layers.h"
#include "ops/row_checks.h"
#include "reference/activation.h"

namespace heed {
namespace {

/// What exponentials cost beside a multiplication.
constexpr double activation_operations = 20;

void activation_by_reference(detail::Place& place, const ActivationProblem& p) {
    for_rows(*place.pool, p.shape, activation_operations,
             [&](std::int64_t begin, std::int64_t end) { reference::activation(p, begin, end); });
}
void activation_backward_by_reference(detail::Place& place, const ActivationProblem& p) {
    for_rows(*place.pool, p.shape, activation_operations,
             [&](std::int64_t begin, std::int64_t end) { reference::activation_backward(p, begin, end); });
}

std::span<const Kernel<ActivationProblem>> activation_kernel_list() {
    static const auto list = kernel_list<ActivationProblem>(
        {cuda::activation_kernels(),
         cpu::activation_kernels(),
         {reference_kernel<ActivationProblem>(activation_by_reference, activation_backward_by_reference)}});
    return list;
}

struct ForwardViews {
    ArgumentView gate, up, out;
};

ActivationProblem checked_activation(Caller function, Activation activation, const ForwardViews& views) {
    check_rows(function, views.gate);
    const Shape& shape = views.gate.view.shape();
    check_optional_input(function, views.up, shape);
    ActivationProblem problem;
    problem.shape = rows_shape(shape);
    problem.activation = activation;
    problem.gate = rows_of(views.gate.view);
    problem.up = rows_of(views.up.view);
    return problem;
}

void forward(Context& context, const char* name, Activation activation, const ForwardViews& views) {
    const Caller function(name, context);
    ActivationProblem problem = checked_activation(function, activation, views);
    check_output(function, "out", views.out.view, views.gate.view.shape(), float_types);
    check_in_place(function, views.out, {views.gate, views.up});
    problem.out = rows_of(views.out.view);
    if (views.gate.view.shape().elements() > 0) { run_forward(context, activation_kernel_list(), {function}, problem); }
}

struct BackwardViews {
    ArgumentView gate, up, dout, dgate, dup;
};

void backward(Context& context, const char* name, Activation activation, const BackwardViews& views) {
    const Caller function(name, context);
    ActivationProblem problem = checked_activation(function, activation, {views.gate, views.up, {}});
    const Shape& shape = views.gate.view.shape();
    check_input(function, views.dout, shape);
    check_optional_output(function, views.dgate, shape);
    check_optional_output(function, views.dup, shape);
    check_in_place(function, views.dgate, {views.gate, views.up, views.dout});
    check_in_place(function, views.dup, {views.gate, views.up, views.dout});
    if (views.dgate.view && views.dup.view) {
        check_disjoint(function, views.dup.name, views.dup.view, views.dgate.name, views.dgate.view);
    }
    problem.dout = rows_of(views.dout.view);
    problem.dgate = rows_of(views.dgate.view);
    problem.dup = rows_of(views.dup.view);
    if (shape.elements() > 0) { run_backward(context, activation_kernel_list(), {function}, problem); }
}

}  // namespace

void activate(Context& context, Activation activation, const View& x, const MutableView& out) {
    forward(context, "activate", activation, {{"x", x}, {"up", {}}, {"out", out}});
}

void activate_backward(Context& context, Activation activation, const View& x, const View& dout,
                       const MutableView& dx) {
    if (!dx) { refuse("activate_backward", "dx", "a tensor", "none"); }
    backward(context, "activate_backward", activation, {{"x", x}, {"up", {}}, {"dout", dout}, {"dx", dx}, {"dup", {}}});
}

void gated(Context& context, Activation activation, const View& gate, const View& up, const MutableView& out) {
    if (!up) { refuse("gated", "up", "a tensor", "none"); }
    forward(context, "gated", activation, {{"gate", gate}, {"up", up}, {"out", out}});
}

void gated_backward(Context& context, Activation activation, const View& gate, const View& up, const View& dout,
                    const MutableView& dgate, const MutableView& dup) {
    if (!up) { refuse("gated_backward", "up", "a tensor", "none"); }
    backward(context, "gated_backward", activation,
             {{"gate", gate}, {"up", up}, {"dout", dout}, {"dgate", dgate}, {"dup", dup}});
}

}  // namespace heed
