#pragma once
#include "cpu/isa/tables.h"
#include "cpu/linear_attention/backward.h"
#include "cpu/linear_attention/forward.h"

/// Linear attention for one instruction set: what the files of isa/ instantiate.

namespace heed::cpu {

constexpr double linear_operations_worth_waking = 1e6;

/// Calls work(team, unit) for every unit of work, each by one worker.
template <class Isa, class Floats, class Work>
void side_by_side(detail::Pool& pool, const LinearCall& call, bool backward, std::int64_t units, double operations,
                  Floats floats, Work work) {
    const bool wake = operations > linear_operations_worth_waking;
    detail::parallel(pool, units, wake, [&](std::int64_t unit, int worker) {
        const std::size_t own = LinearScratch::layout<Isa>(call, backward, nullptr, nullptr);
        const auto bytes = own + static_cast<std::size_t>(floats(call, 1)) * 4;
        char* memory = static_cast<char*>(pool.scratch(worker).at_least(bytes));
        Team<Isa> team{call, pool, false, backward, 1, {}, reinterpret_cast<float*>(memory + own)};
        LinearScratch::layout<Isa>(call, backward, memory, &team.own);
        work(team, unit);
    });
}

/// The same, or, where there are fewer units than threads, one unit after the other with all threads on each.
template <class Isa, class Floats, class Work>
void with_teams(detail::Pool& pool, const LinearCall& call, bool backward, std::int64_t units, double operations,
                Floats floats, Work work) {
    const std::int64_t chunks = (larger(call.keys, call.queries) + call.chunk - 1) / call.chunk;
    const std::int64_t threads = pool.threads();
    if (operations <= linear_operations_worth_waking || units >= threads || chunks == 1) {
        side_by_side<Isa>(pool, call, backward, units, operations, floats, work);
        return;
    }
    const std::int64_t wave = smaller(chunks, 4 * threads);
    const auto bytes = static_cast<std::size_t>(floats(call, wave)) * 4;
    Team<Isa> team{call, pool, true, backward, wave, {}, static_cast<float*>(pool.shared().at_least(bytes))};
    for (std::int64_t unit = 0; unit < units; ++unit) { work(team, unit); }
}

/// Multiplications and additions of a forward pass.
HEED_INLINE double linear_operations(const LinearCall& call) {
    const auto number = [](std::int64_t n) { return static_cast<double>(n); };
    const double state = 2 * number(call.feature_size) * number(call.value_size);
    const double inside = number(call.chunk) * number(call.feature_size + call.value_size);
    return number(call.batch) * (number(call.keys * call.states) * state +
                                 number(call.queries * call.heads) * (state + (call.causal ? inside : 0)));
}

template <class Isa>
void linear_forward(detail::Pool& pool, const LinearAttentionProblem& problem) {
    const LinearCall call = make_linear_call(problem);
    const std::int64_t units = call.batch * call.states;
    const double operations = linear_operations(call);
    constexpr std::int64_t few_tokens = 8;
    const LinearForm form = problem.options.form;
    if (call.causal &&
        (form == LinearForm::recurrent || (form == LinearForm::automatic && call.queries <= few_tokens))) {
        side_by_side<Isa>(pool, call, false, units, operations, LinearForward<Isa>::memory_floats,
                          [&](Team<Isa>& team, std::int64_t unit) {
                              LinearRecurrent<Isa>::run(call, unit / call.states, unit % call.states, team.memory,
                                                        team.own);
                          });
        return;
    }
    with_teams<Isa>(pool, call, false, units, operations, LinearForward<Isa>::memory_floats,
                    [&](Team<Isa>& team, std::int64_t unit) {
                        LinearForward<Isa>::run(team, unit / call.states, unit % call.states);
                    });
}

template <class Isa>
void linear_backward(detail::Pool& pool, const LinearAttentionProblem& problem) {
    const LinearCall call = make_linear_call(problem);
    with_teams<Isa>(pool, call, true, call.batch * call.kv_heads, 3 * linear_operations(call),
                    LinearBackward<Isa>::memory_floats, [&](Team<Isa>& team, std::int64_t unit) {
                        LinearBackward<Isa>(team, unit / call.kv_heads, unit % call.kv_heads).run();
                    });
}

template <class Isa>
constexpr LinearAttentionFunctions linear_attention_functions() {
    return {linear_forward<Isa>, linear_backward<Isa>};
}

}  // namespace heed::cpu
