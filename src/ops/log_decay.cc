#include <heed/log_decay.h>

#include "cuda/composition.h"
#include "kernel/kernel.h"
#include "ops/host_copy.h"
#include "ops/row_checks.h"
#include "reference/log_decay.h"

namespace heed {
namespace {

/// What an exponential and a logarithm cost beside a multiplication.
constexpr double log_decay_operations = 60;

void log_decay_by_reference(detail::Place& place, const LogDecayProblem& p) {
    for_rows(*place.pool, p.shape, log_decay_operations,
             [&](std::int64_t begin, std::int64_t end) { reference::log_decay(p, begin, end); });
}

/// The sums come first: dx may lie where x or dout does.
void log_decay_backward_by_reference(detail::Place& place, const LogDecayProblem& p) {
    if (p.drate.present) {
        const double operations = static_cast<double>(p.shape.rows) * static_cast<double>(p.shape.columns);
        detail::parallel(*place.pool, p.states, detail::effort_for(operations * log_decay_operations),
                         [&](std::int64_t state, int) { reference::log_decay_rate_backward(p, state); });
    }
    if (!p.dx.present) { return; }
    for_rows(*place.pool, p.shape, log_decay_operations,
             [&](std::int64_t begin, std::int64_t end) { reference::log_decay_backward(p, begin, end); });
}

/// One row for each device: there is nothing to force.
std::span<const Kernel<LogDecayProblem>> log_decay_kernel_list(const Context& context) {
    static const std::vector<Kernel<LogDecayProblem>> here = {reference_kernel<LogDecayProblem>(
                                                          log_decay_by_reference, log_decay_backward_by_reference)},
                                                      there = cuda::log_decay_kernels();
    return on_host(context) ? here : there;
}

LogDecayProblem checked_log_decay(Caller function, const View& x, const View& rate) {
    check_rows(function, {"x", x});
    check_rows(function, {"rate", rate});
    LogDecayProblem problem;
    problem.shape = rows_shape(x.shape());
    if (rate.rank() != 1 || rate.extent(0) == 0 || problem.shape.columns % rate.extent(0) != 0) {
        refuse(function, "rate",
               "[N] with N a divisor of the " + std::to_string(problem.shape.columns) + " columns of x",
               to_string(rate.shape()));
    }
    problem.states = rate.extent(0);
    problem.rate = rows_of(rate);
    problem.x = rows_of(x);
    return problem;
}

}  // namespace

void log_decay(Context& context, const View& x, const View& rate, const MutableView& out) {
    const Caller function("log_decay", context);
    LogDecayProblem problem = checked_log_decay(function, x, rate);
    check_output(function, "out", out, x.shape(), float_types);
    check_in_place(function, {"out", out}, {{"x", x}});
    check_all_disjoint(function, {{"out", out}}, {{"rate", rate}});
    problem.out = rows_of(out);
    if (x.shape().elements() > 0) { run_forward(context, log_decay_kernel_list(context), {function}, problem); }
}

void log_decay_backward(Context& context, const View& x, const View& rate, const View& dout, const MutableView& dx,
                        const MutableView& drate) {
    const Caller function("log_decay_backward", context);
    LogDecayProblem problem = checked_log_decay(function, x, rate);
    check_input(function, {"dout", dout}, x.shape());
    check_optional_output(function, {"dx", dx}, x.shape());
    check_optional_output(function, {"drate", drate}, rate.shape());
    check_in_place(function, {"dx", dx}, {{"x", x}, {"dout", dout}});
    check_all_disjoint(function, {{"drate", drate}}, {{"x", x}, {"rate", rate}, {"dout", dout}, {"dx", dx}});
    if (dx) { check_all_disjoint(function, {{"dx", dx}}, {{"rate", rate}}); }
    problem.dout = rows_of(dout);
    problem.dx = rows_of(dx);
    problem.drate = rows_of(drate);
    run_backward(context, log_decay_kernel_list(context), {function}, problem);
}

}  // namespace heed
