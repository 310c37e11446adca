#include <heed/positions.h>

#include "base/overlap.h"
#include "cpu/rope/rope.h"
#include "cuda/layers.h"
#include "kernel/rope_problem.h"
#include "ops/attention_checks.h"
#include "ops/positions_checks.h"
#include "reference/rope.h"

#include <cmath>
#include <vector>

namespace heed {
namespace {

void check_table(Caller function, const char* name, const RopeTable& table, std::int64_t head_size) {
    const auto pairs = static_cast<std::int64_t>(table.frequencies.size());
    if (pairs < 1 || pairs > head_size / 2) {
        refuse(function, name,
               "1 to " + std::to_string(head_size / 2) + " frequencies for heads of size " + std::to_string(head_size),
               std::to_string(pairs));
    }
    for (std::size_t i = 0; i < table.frequencies.size(); ++i) {
        if (!std::isfinite(table.frequencies[i])) {
            refuse(function, std::string(name) + ".frequencies[" + std::to_string(i) + "]", "a finite number",
                   std::to_string(table.frequencies[i]));
        }
    }
    if (!(table.attention_factor > 0) || !std::isfinite(table.attention_factor)) {
        refuse(function, std::string(name) + ".attention_factor", "a positive number",
               std::to_string(table.attention_factor));
    }
    if (table.pairing != Pairing::interleaved && table.pairing != Pairing::halves) {
        refuse(function, std::string(name) + ".pairing", "interleaved or halves",
               std::to_string(static_cast<int>(table.pairing)));
    }
}

/// `input` and `output` are what the caller knows x and out as.
RopeProblem checked(Caller function, const char* input, const View& x, const char* output, const MutableView& out,
                    const RopeTable& table, const char* table_name, const RopeOptions& options) {
    check_rank4(function, input, x);
    check_dtype(function, input, x, float_types);
    check_table(function, table_name, table, x.extent(3));
    if (x.dtype() == DType::f32) {
        check_output(function, output, out, x.shape(), {DType::f32});
    } else {
        check_output(function, output, out, x.shape(), {x.dtype(), DType::f32});
    }
    RopeProblem problem;
    problem.in_place = same_memory(x, out);
    if (!problem.in_place && overlaps(x, out)) {
        refuse(function, output, std::string("the view ") + input + " itself or memory apart from it", "an overlap");
    }
    problem.x = x;
    problem.out = out;
    if (options.positions) { check_memory(function.function, "positions", options.positions); }  // read here
    problem.positions = checked_positions(function, "positions", options.positions, x.extent(0), x.extent(2));
    check_disjoint(function, output, out, "positions", options.positions);
    check_first(function, options.first, x.extent(2), options.positions);
    problem.first = options.first;
    problem.frequencies = table.frequencies;
    problem.factor = table.attention_factor;
    problem.pairing = table.pairing;
    return problem;
}

std::span<const Kernel<RopeProblem>> rope_kernel_list() {
    static const auto list =
        kernel_list<RopeProblem>({cuda::rope_kernels(), cpu::rope_kernels(), {reference::rope_kernel()}});
    return list;
}

void run(Context& context, Caller function, const RopeProblem& problem) {
    if (problem.x.shape().elements() == 0) { return; }
    run_forward(context, rope_kernel_list(), {function}, problem);
}

}  // namespace

void rope(Context& context, const View& x, const MutableView& out, const RopeTable& table, const RopeOptions& options) {
    run(context, "rope", checked({"rope", context}, "x", x, "out", out, table, "table", options));
}

void rope_backward(Context& context, const View& dout, const MutableView& dx, const RopeTable& table,
                   const RopeOptions& options) {
    RopeProblem problem = checked({"rope_backward", context}, "dout", dout, "dx", dx, table, "table", options);
    std::vector<double> frequencies = table.frequencies;
    for (double& f : frequencies) { f = -f; }
    problem.frequencies = frequencies;
    run(context, "rope_backward", problem);
}

void rerotate(Context& context, const View& x, const MutableView& out, const RopeTable& from, const RopeTable& to,
              const RopeOptions& options) {
    RopeProblem problem = checked({"rerotate", context}, "x", x, "out", out, to, "to", options);
    check_table("rerotate", "from", from, x.extent(3));
    if (from.frequencies.size() != to.frequencies.size()) {
        refuse("rerotate", "from", std::to_string(to.frequencies.size()) + " frequencies as in to",
               std::to_string(from.frequencies.size()));
    }
    if (from.pairing != to.pairing) { refuse("rerotate", "from", "the pairing of to", "the other one"); }
    std::vector<double> frequencies = to.frequencies;
    for (std::size_t i = 0; i < frequencies.size(); ++i) { frequencies[i] -= from.frequencies[i]; }
    problem.frequencies = frequencies;
    problem.factor /= from.attention_factor;
    run(context, "rerotate", problem);
}

}  // namespace heed
