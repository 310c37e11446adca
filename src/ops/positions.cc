#include <heed/positions.h>

#include "base/dispatch.h"
#include "ops/attention_checks.h"
#include "ops/positions_checks.h"
#include "reference/positions.h"

#include <bit>
#include <cmath>

namespace heed {
namespace {

void check_input(Caller function, const char* name, const View& view, int rank, const char* axes) {
    if (!view || view.rank() != rank) { refuse(function, name, axes, view ? to_string(view.shape()) : "none"); }
    check_dtype(function, name, view, float_types);
    check_memory(function, name, view);
}

std::span<const Kernel<SinusoidProblem>> sinusoid_kernels() {
    static const std::vector<Kernel<SinusoidProblem>> list = {reference::sinusoid_kernel()};
    return list;
}

std::span<const Kernel<LearnedProblem>> learned_kernels() {
    static const std::vector<Kernel<LearnedProblem>> list = {reference::learned_kernel()};
    return list;
}

}  // namespace

// ---- Sinusoids -----------------------------------------------------------------------------------------------------

void sinusoids(Context& context, const MutableView& out, const SinusoidOptions& options) {
    const Caller function("sinusoids", context);
    check_input(function, "out", out, 2, "2 axes [T,d]");
    check_output(function, "out", out, out.shape(), float_types);
    if (!(options.base > 0) || !std::isfinite(options.base)) {
        refuse(function, "base", "a positive number", std::to_string(options.base));
    }
    if (options.layout != Pairing::interleaved && options.layout != Pairing::halves) {
        refuse(function, "layout", "interleaved or halves", std::to_string(static_cast<int>(options.layout)));
    }
    const std::int64_t length = out.extent(0);
    const View positions = checked_positions(function, "positions", options.positions, 1, length);
    check_disjoint(function, "out", out, "positions", positions);
    check_first(function, options.first, length, options.positions);
    run_forward(context, sinusoid_kernels(), {function}, {out, positions, options});
}

// ---- Learned positions ---------------------------------------------------------------------------------------------

namespace {

/// The row of the table that each token reads, b * T + t. `tensor` is [B,T,d].
std::vector<std::int64_t> table_rows(Caller function, const View& positions, const View& tensor,
                                     std::int64_t table_rows, std::int64_t offset) {
    if (!positions) { refuse(function, "positions", "[B,T] or [T]", "none"); }
    const std::int64_t batch = tensor.extent(0);
    const std::int64_t length = tensor.extent(1);
    const View p = checked_positions(function, "positions", positions, batch, length);
    std::vector<std::int64_t> rows(static_cast<std::size_t>(batch * length));
    for (std::int64_t b = 0; b < batch; ++b) {
        for (std::int64_t t = 0; t < length; ++t) {
            const std::int64_t position =
                read_integer(p.dtype(), p.data(), (p.extent(0) == 1 ? 0 : b) * p.stride(0) + t * p.stride(1));
            const std::int64_t row = position + offset;
            if (row < 0 || row >= table_rows) {
                refuse(
                    function, "positions",
                    "rows of the table, " + std::to_string(-offset) + " to " + std::to_string(table_rows - 1 - offset),
                    std::to_string(position));
            }
            rows[static_cast<std::size_t>(b * length + t)] = row;
        }
    }
    return rows;
}

void check_offset(Caller function, std::int64_t offset) {
    constexpr std::int64_t largest = std::int64_t{1} << 53;
    if (offset < -largest || offset > largest) { refuse(function, "offset", "within 2^53", std::to_string(offset)); }
}

}  // namespace

void learned_positions(Context& context, const View& table, const View& positions, const MutableView& out,
                       const LearnedOptions& options) {
    const Caller function("learned_positions", context);
    check_input(function, "table", table, 2, "2 axes [P,d]");
    check_input(function, "out", out, 3, "3 axes [B,T,d]");
    check_output(function, "out", out, {out.extent(0), out.extent(1), table.extent(1)}, float_types);
    check_offset(function, options.offset);
    LearnedProblem problem;
    problem.rows = table_rows(function, positions, out, table.extent(0), options.offset);
    check_disjoint(function, "out", out, "table", table);
    check_disjoint(function, "out", out, "positions", positions);
    problem.add = options.add;
    problem.table = table;
    problem.out = out;
    run_forward(context, learned_kernels(), {function}, problem);
}

void learned_positions_backward(Context& context, const View& dout, const View& positions, const MutableView& dtable,
                                const LearnedOptions& options) {
    const Caller function("learned_positions_backward", context);
    check_input(function, "dout", dout, 3, "3 axes [B,T,d]");
    check_input(function, "dtable", dtable, 2, "2 axes [P,d]");
    check_output(function, "dtable", dtable, {dtable.extent(0), dout.extent(2)}, {DType::f32, DType::f64});
    check_offset(function, options.offset);
    LearnedProblem problem;
    problem.rows = table_rows(function, positions, dout, dtable.extent(0), options.offset);
    check_disjoint(function, "dtable", dtable, "dout", dout);
    check_disjoint(function, "dtable", dtable, "positions", positions);
    problem.add = options.add;
    problem.dout = dout;
    problem.dtable = dtable;
    run_backward(context, learned_kernels(), {function}, problem);
}

// ---- ALiBi ---------------------------------------------------------------------------------------------------------

std::vector<double> alibi_slopes(std::int64_t heads, double max_bias) {
    constexpr std::int64_t most = std::int64_t{1} << 20;
    if (heads < 1 || heads > most) { refuse("alibi_slopes", "heads", "1 to 2^20", std::to_string(heads)); }
    if (!(max_bias > 0) || !std::isfinite(max_bias)) {
        refuse("alibi_slopes", "max_bias", "a positive number", std::to_string(max_bias));
    }
    const auto power = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(heads)));
    std::vector<double> slopes;
    for (std::int64_t h = 0; h < heads; ++h) {
        const double step = h < power ? static_cast<double>(h + 1) : static_cast<double>(h - power) + 0.5;
        slopes.push_back(std::exp2(-max_bias * step / static_cast<double>(power)));
    }
    return slopes;
}

}  // namespace heed
