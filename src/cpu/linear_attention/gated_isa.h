#pragma once
#include "cpu/linear_attention/gated_backward.h"
#include "cpu/linear_attention/gated_forward.h"

/// Gated linear attention for one instruction set: what the files isa/gated_*.cc instantiate.

namespace heed::cpu {

constexpr double gated_operations_worth_waking = 1e6;

/// Calls work(scratch, unit) for every unit, each by one worker with scratch of its own.
template <class Isa, class Work>
void each_gated_unit(detail::Pool& pool, const GatedCall& call, bool backward, std::int64_t units, Work work) {
    const auto number = [](std::int64_t n) { return static_cast<double>(n); };
    const double operations =
        number(call.batch * call.keys * call.heads) * 6 * number(call.feature_size) * number(call.value_size);
    const std::size_t bytes = GatedScratch::layout<Isa>(call, backward, nullptr, nullptr);
    detail::parallel(pool, units, operations > gated_operations_worth_waking, [&](std::int64_t unit, int worker) {
        GatedScratch scratch;
        GatedScratch::layout<Isa>(call, backward, static_cast<char*>(pool.scratch(worker).at_least(bytes)), &scratch);
        work(scratch, unit);
    });
}

/// Columns of a state do not know of one another. Where there are at least twice as many threads as states, each state
/// is divided among several, who all compute the products of queries and keys: half of the columns of a state of
/// 128 x 128 take 0.57 to 0.63 of its time. A number comes out of the same sums either way.
template <class Isa>
void gated_forward(detail::Pool& pool, const LinearAttentionProblem& problem) {
    const GatedCall call = make_gated_call(problem);
    const std::int64_t units = call.batch * call.states;
    const std::int64_t vectors = (call.value_size + Isa::lanes - 1) / Isa::lanes;
    const std::int64_t most =
        call.chunk == 1 ? 1 : larger<std::int64_t>(1, pool.threads() / larger<std::int64_t>(1, units));
    const std::int64_t columns = (vectors + most - 1) / most * Isa::lanes;
    const std::int64_t parts =
        larger<std::int64_t>(1, (call.value_size + columns - 1) / larger<std::int64_t>(1, columns));
    each_gated_unit<Isa>(pool, call, false, units * parts, [&](GatedScratch& scratch, std::int64_t unit) {
        const std::int64_t state = unit / parts, begin = unit % parts * columns;
        const GatedCall part = columns_of(call, begin, smaller(columns, call.value_size - begin));
        GatedForward<Isa> forward(part, scratch);
        call.chunk == 1 ? forward.run_steps(state / call.states, state % call.states)
                        : forward.run(state / call.states, state % call.states);
    });
}

template <class Isa>
void gated_backward(detail::Pool& pool, const LinearAttentionProblem& problem) {
    const GatedCall call = make_gated_call(problem);
    each_gated_unit<Isa>(pool, call, true, call.batch * call.kv_heads, [&](GatedScratch& scratch, std::int64_t unit) {
        GatedBackward<Isa>(call, scratch, unit / call.kv_heads, unit % call.kv_heads).run();
    });
}

}  // namespace heed::cpu
