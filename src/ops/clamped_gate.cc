#include "ops/clamped_gate.h"

#include "cuda/composition.h"
#include "kernel/kernel.h"
#include "ops/host_copy.h"
#include "ops/row_checks.h"
#include "reference/clamped_gate.h"

namespace heed {
namespace {

/// What an exponential costs beside a multiplication.
constexpr double clamped_gate_operations = 30;
/// For explain(): kernels take every problem made here, so no error names it.
constexpr const char* of_forward = "forward";

void clamped_gate_by_reference(detail::Place& place, const ClampedGateProblem& p) {
    for_rows(*place.pool, p.shape, clamped_gate_operations,
             [&](std::int64_t begin, std::int64_t end) { reference::clamped_gate(p, begin, end); });
}
void clamped_gate_backward_by_reference(detail::Place& place, const ClampedGateProblem& p) {
    for_rows(*place.pool, p.shape, clamped_gate_operations,
             [&](std::int64_t begin, std::int64_t end) { reference::clamped_gate_backward(p, begin, end); });
}

/// One row for each device: there is nothing to force.
std::span<const Kernel<ClampedGateProblem>> clamped_gate_kernel_list(const Context& context) {
    static const std::vector<Kernel<ClampedGateProblem>> here = {reference_kernel<ClampedGateProblem>(
                                                             clamped_gate_by_reference,
                                                             clamped_gate_backward_by_reference)},
                                                         there = cuda::clamped_gate_kernels();
    return on_host(context) ? here : there;
}

ClampedGateProblem clamped_gate_problem(const ClampedGate& options, const View& gate, const View& up) {
    ClampedGateProblem problem;
    problem.shape = rows_shape(gate.shape());
    problem.limit = options.limit;
    problem.alpha = options.alpha;
    problem.gate = rows_of(gate);
    problem.up = rows_of(up);
    return problem;
}

}  // namespace

void clamped_gate(Context& context, const ClampedGate& options, const View& gate, const View& up,
                  const MutableView& out) {
    if (gate.shape().elements() == 0) { return; }
    ClampedGateProblem problem = clamped_gate_problem(options, gate, up);
    problem.out = rows_of(out);
    run_forward(context, clamped_gate_kernel_list(context), {of_forward}, problem);
}

void clamped_gate_backward(Context& context, const ClampedGate& options, const View& gate, const View& up,
                           const View& dout, const MutableView& dgate, const MutableView& dup) {
    if (gate.shape().elements() == 0) { return; }
    ClampedGateProblem problem = clamped_gate_problem(options, gate, up);
    problem.dout = rows_of(dout);
    problem.dgate = rows_of(dgate);
    problem.dup = rows_of(dup);
    run_backward(context, clamped_gate_kernel_list(context), {of_forward}, problem);
}

}  // namespace heed
