#include <heed/dropout.h>
#include <heed/random.h>

#include "cpu/layers/layers.h"
#include "cuda/layers.h"
#include "ops/row_checks.h"
#include "reference/dropout.h"

namespace heed {
namespace {

void dropout_by_reference(detail::Place& place, const DropoutProblem& p) {
    for_rows(*place.pool, p.shape, 15,
             [&](std::int64_t begin, std::int64_t end) { reference::dropout(p, begin, end); });
}

std::span<const Kernel<DropoutProblem>> dropout_kernel_list() {
    static const auto list = kernel_list<DropoutProblem>(
        {cuda::dropout_kernels(), cpu::dropout_kernels(), {reference_kernel<DropoutProblem>(dropout_by_reference)}});
    return list;
}

}  // namespace

void dropout(Context& context, const View& x, const MutableView& out, const DropoutOptions& options) {
    const Caller function("dropout", context);
    check_rows(function, {"x", x});
    check_output(function, "out", out, x.shape(), float_types);
    check_optional_input(function, {"residual", options.residual}, x.shape());
    check_in_place(function, {"out", out}, {{"x", x}, {"residual", options.residual}});
    if (!(options.p >= 0 && options.p < 1)) { refuse(function, "p", "0 <= p < 1", std::to_string(options.p)); }
    if (options.p > 0 && !options.seed) { refuse(function, "seed", "a number, as p is above 0", "none"); }
    DropoutProblem problem;
    problem.shape = rows_shape(x.shape());
    if (problem.shape.columns > std::int64_t{1} << 32) {
        refuse(function, "x", "at most 2^32 columns", to_string(x.shape()));
    }
    problem.scale = 1 / (1 - options.p);
    problem.threshold = dropout_threshold(options.p);
    problem.seed = options.seed.value_or(0);
    problem.offset = options.offset;
    problem.x = rows_of(x);
    problem.residual = rows_of(options.residual);
    problem.out = rows_of(out);
    if (x.shape().elements() > 0) { run_forward(context, dropout_kernel_list(), {function}, problem); }
}

}  // namespace heed
