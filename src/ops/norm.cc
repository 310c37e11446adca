#include <heed/norm.h>

#include "cpu/layers/layers.h"
#include "cuda/layers.h"
#include "ops/row_checks.h"
#include "reference/norm.h"

namespace heed {
namespace {

constexpr double norm_operations = 4;

void norm_by_reference(detail::Place& place, const NormProblem& p) {
    for_rows(*place.pool, p.shape, norm_operations,
             [&](std::int64_t begin, std::int64_t end) { reference::norm(p, begin, end); });
}
void norm_backward_by_reference(detail::Place& place, const NormProblem& p) {
    // dx may take the place of s or dout, so it comes last.
    if (p.dweight.present || p.dbias.present) { reference::norm_backward_weight(p); }
    if (!p.dx.present) { return; }
    for_rows(*place.pool, p.shape, norm_operations,
             [&](std::int64_t begin, std::int64_t end) { reference::norm_backward(p, begin, end); });
}

std::span<const Kernel<NormProblem>> norm_kernel_list() {
    static const auto list =
        kernel_list<NormProblem>({cuda::norm_kernels(),
                                  cpu::norm_kernels(),
                                  {reference_kernel<NormProblem>(norm_by_reference, norm_backward_by_reference)}});
    return list;
}

void check_norm_eps(const char* function, double eps) {
    if (!(eps >= 0 && eps < 1e30)) { refuse(function, "eps", "a finite number from 0 up", std::to_string(eps)); }
}

void normalise(Context& context, const char* name, bool centred, const View& x, const MutableView& out,
               const NormOptions& o) {
    const Caller function(name, context);
    check_rows(function, {"x", x});
    const Shape& shape = x.shape();
    const Shape row{shape[shape.rank() - 1]};
    check_output(function, "out", out, shape, float_types);
    check_optional_input(function, {"residual", o.residual}, shape);
    check_optional_output(function, {"sum", o.sum}, shape);
    check_optional_input(function, {"weight", o.weight}, row);
    check_optional_input(function, {"bias", o.bias}, row);
    if (!centred && o.bias) { refuse(function, "bias", "none", to_string(o.bias.shape())); }
    check_in_place(function, {"out", out}, {{"x", x}, {"residual", o.residual}});
    check_in_place(function, {"sum", o.sum}, {{"x", x}, {"residual", o.residual}});
    check_all_disjoint(function, {{"out", out}, {"sum", o.sum}}, {{"weight", o.weight}, {"bias", o.bias}});
    check_norm_eps(function, o.eps);
    check_finite(function, "weight_offset", o.weight_offset);
    NormProblem problem;
    problem.shape = rows_shape(shape);
    problem.centred = centred;
    problem.eps = o.eps;
    problem.weight_offset = o.weight_offset;
    problem.weight = rows_of(o.weight);
    problem.bias = rows_of(o.bias);
    problem.x = rows_of(x);
    problem.residual = rows_of(o.residual);
    problem.sum = rows_of(o.sum);
    problem.out = rows_of(out);
    if (shape.elements() > 0) { run_forward(context, norm_kernel_list(), {function}, problem); }
}

void normalise_backward(Context& context, const char* name, bool centred, const View& s, const View& dout,
                        const NormGradients& gradients, const NormBackwardOptions& o) {
    const Caller function(name, context);
    check_rows(function, {"s", s});
    const Shape& shape = s.shape();
    const Shape row{shape[shape.rank() - 1]};
    check_input(function, {"dout", dout}, shape);
    check_optional_input(function, {"dsum", o.dsum}, shape);
    check_optional_input(function, {"weight", o.weight}, row);
    check_optional_output(function, {"dx", gradients.dx}, shape);
    check_optional_output(function, {"dweight", gradients.dweight}, row);
    check_optional_output(function, {"dbias", gradients.dbias}, row);
    if (!centred && gradients.dbias) { refuse(function, "dbias", "none", to_string(gradients.dbias.shape())); }
    check_in_place(function, {"dx", gradients.dx}, {{"s", s}, {"dout", dout}, {"dsum", o.dsum}});
    check_all_disjoint(function, {{"dx", gradients.dx}, {"dweight", gradients.dweight}, {"dbias", gradients.dbias}},
                       {{"weight", o.weight}});
    check_all_disjoint(function, {{"dweight", gradients.dweight}, {"dbias", gradients.dbias}},
                       {{"s", s}, {"dout", dout}, {"dsum", o.dsum}});
    check_norm_eps(function, o.eps);
    check_finite(function, "weight_offset", o.weight_offset);
    NormProblem problem;
    problem.shape = rows_shape(shape);
    problem.centred = centred;
    problem.eps = o.eps;
    problem.weight_offset = o.weight_offset;
    problem.weight = rows_of(o.weight);
    problem.x = rows_of(s);
    problem.dout = rows_of(dout);
    problem.dsum = rows_of(o.dsum);
    problem.dx = rows_of(gradients.dx);
    problem.dweight = rows_of(gradients.dweight);
    problem.dbias = rows_of(gradients.dbias);
    problem.accumulate = gradients.accumulate;
    run_backward(context, norm_kernel_list(), {function}, problem);
}

}  // namespace

void layer_norm(Context& context, const View& x, const MutableView& out, const NormOptions& options) {
    normalise(context, "layer_norm", true, x, out, options);
}
void rms_norm(Context& context, const View& x, const MutableView& out, const NormOptions& options) {
    normalise(context, "rms_norm", false, x, out, options);
}
void layer_norm_backward(Context& context, const View& s, const View& dout, const NormGradients& gradients,
                         const NormBackwardOptions& options) {
    normalise_backward(context, "layer_norm_backward", true, s, dout, gradients, options);
}
void rms_norm_backward(Context& context, const View& s, const View& dout, const NormGradients& gradients,
                       const NormBackwardOptions& options) {
    normalise_backward(context, "rms_norm_backward", false, s, dout, gradients, options);
}

}  // namespace heed
