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

template <class Isa>
void gated_forward(detail::Pool& pool, const LinearAttentionProblem& problem) {
    const GatedCall call = make_gated_call(problem);
    each_gated_unit<Isa>(pool, call, false, call.batch * call.states, [&](GatedScratch& scratch, std::int64_t unit) {
        GatedForward<Isa> forward(call, scratch);
        call.chunk == 1 ? forward.run_steps(unit / call.states, unit % call.states)
                        : forward.run(unit / call.states, unit % call.states);
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
