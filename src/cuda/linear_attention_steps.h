#pragma once
/// The arithmetic of linear attention on the device, as <heed/linear_attention.h> has it and
/// reference/gated_linear_attention.cc spells it out. A Team is the threads of one block, or of a test on the host:
///
///     thread(), threads()      its number among all
///     lane(), lanes()          its number in its warp
///     warp(), warps()          the warp's
///     sum_of_lanes(x)          of the lanes of a warp, in the same order each time
///     meet()                   waits until all have come
///     load<A>, store<A>, integer   elements of any type
///
/// A is the type of sums. Every number is written by one thread, from sums in a fixed order.

#include "cuda/linear_attention_call.h"

#include <cmath>

#ifdef __CUDACC__
#define HEED_DEVICE __device__ inline
#else
#define HEED_DEVICE inline
#endif

namespace heed::cuda {

/// every(n) for n of `count`, by all threads.
template <class Team, class Every>
HEED_DEVICE void share(const Team& team, std::int64_t count, const Every& every) {
    for (std::int64_t n = team.thread(); n < count; n += team.threads()) { every(n); }
}

/// Where an element of a tensor of four axes lies.
HEED_DEVICE std::int64_t place_of(const Tensor4& x, std::int64_t b, std::int64_t h, std::int64_t t, std::int64_t c) {
    return b * x.stride[0] + h * x.stride[1] + t * x.stride[2] + c * x.stride[3];
}
/// An element, or `absent` where there is no tensor.
template <class A, class Team>
HEED_DEVICE A number_of(const Tensor4& x, std::int64_t b, std::int64_t h, std::int64_t t, std::int64_t c,
                        A absent = 0) {
    return x.data == nullptr ? absent : Team::template load<A>(x.dtype, x.data, place_of(x, b, h, t, c));
}
template <class A, class Team>
HEED_DEVICE void put_number_at(const Tensor4& x, std::int64_t b, std::int64_t h, std::int64_t t, std::int64_t c,
                               A value) {
    if (x.data != nullptr) { Team::template store<A>(x.dtype, x.data, place_of(x, b, h, t, c), value); }
}

template <class A>
HEED_DEVICE A feature_of(FeatureMap feature, A x) {
    switch (feature) {
        case FeatureMap::elu_plus_one: return x > 0 ? x + 1 : std::exp(x);
        case FeatureMap::relu: return x <= 0 ? A{0} : x;  // NaN stays
        default: return x;
    }
}
/// of y = feature(x):  dx from dy
template <class A>
HEED_DEVICE A feature_gradient(FeatureMap feature, A x, A dy) {
    switch (feature) {
        case FeatureMap::elu_plus_one: return x > 0 ? dy : dy * std::exp(x);
        case FeatureMap::relu: return x <= 0 ? A{0} : dy;
        default: return dy;
    }
}

template <class Team>
HEED_DEVICE std::int64_t keys_of(const LinearAttentionCall& c, std::int64_t b) {
    if (c.key_lengths.data == nullptr) { return c.keys; }
    const std::int64_t length = Team::integer(c.key_lengths.dtype, c.key_lengths.data, b * c.key_lengths.stride[0]);
    return length < 0 ? 0 : length < c.keys ? length : c.keys;  // of the device they were not checked
}

template <class A>
HEED_DEVICE bool divides(const LinearAttentionCall& c, A denominator) {
    return denominator != 0 && !(c.least_denominator > 0 && denominator < static_cast<A>(c.least_denominator));
}

/// One state, and the rows that a token needs: numbers of type A in memory that all threads see.
template <class A>
struct LinearRows {
    A *phi_k, *decay, *phi_q, *slope;    ///< [F]
    A *update, *surprise, *read, *grad;  ///< [C]

    static constexpr std::int64_t count(std::int64_t rows, std::int64_t columns) { return 4 * rows + 4 * columns; }
    HEED_DEVICE LinearRows(A* memory, std::int64_t rows, std::int64_t columns)
        : phi_k(memory),
          decay(phi_k + rows),
          phi_q(decay + rows),
          slope(phi_q + rows),
          update(slope + rows),
          surprise(update + columns),
          read(surprise + columns),
          grad(read + columns) {}
};

/// A state: which one, and its matrix in memory.
struct StatePlace {
    std::int64_t entry = 0, state = 0, kv_head = 0;
};
HEED_DEVICE StatePlace state_place(const LinearAttentionCall& c, std::int64_t entry, std::int64_t state) {
    return {entry, state, state / c.sharers()};
}

/// Element (f, column) of a state that lies as S and z.
template <class A, class Team>
HEED_DEVICE A state_number(const LinearAttentionCall& c, const Tensor4& s, const Tensor4& z, const StatePlace& at,
                           std::int64_t f, std::int64_t column) {
    return column < c.value_size ? number_of<A, Team>(s, at.entry, at.state, f, column)
                                 : number_of<A, Team>(z, at.entry, at.state, f, 0);
}
template <class A, class Team>
HEED_DEVICE void put_state_number(const LinearAttentionCall& c, const Tensor4& s, const Tensor4& z,
                                  const StatePlace& at, std::int64_t f, std::int64_t column, A value) {
    if (column < c.value_size) {
        put_number_at<A, Team>(s, at.entry, at.state, f, column, value);
    } else {
        put_number_at<A, Team>(z, at.entry, at.state, f, 0, value);
    }
}
template <class A, class Team>
HEED_DEVICE void load_state(const LinearAttentionCall& c, const Team& team, const Tensor4& s, const Tensor4& z,
                            const StatePlace& at, A* state) {
    const std::int64_t columns = c.columns();
    share(team, c.state_size(),
          [&](std::int64_t n) { state[n] = state_number<A, Team>(c, s, z, at, n / columns, n % columns); });
}
template <class A, class Team>
HEED_DEVICE void store_state(const LinearAttentionCall& c, const Team& team, const Tensor4& s, const Tensor4& z,
                             const StatePlace& at, const A* state) {
    const std::int64_t columns = c.columns();
    share(team, c.state_size(),
          [&](std::int64_t n) { put_state_number<A, Team>(c, s, z, at, n / columns, n % columns, state[n]); });
}

/// What is read of column `column` at x: sum over f of x[f] state[f][column].
template <class A>
HEED_DEVICE A read_column(const LinearAttentionCall& c, const A* x, const A* state, std::int64_t column) {
    const std::int64_t columns = c.columns();
    A sum = 0;
    for (std::int64_t f = 0; f < c.head_size; ++f) { sum += x[f] * state[f * columns + column]; }
    return sum;
}

/// Key and decay of token t to `rows`.
template <class A, class Team>
HEED_DEVICE void load_key(const LinearAttentionCall& c, const Team& team, const StatePlace& at, std::int64_t t,
                          const LinearRows<A>& rows) {
    const A fixed = number_of<A, Team>(c.decay, at.state, 0, 0, 0, A{1});
    share(team, c.head_size, [&](std::int64_t f) {
        rows.phi_k[f] = feature_of(c.feature, number_of<A, Team>(c.k, at.entry, at.kv_head, t, f));
        rows.decay[f] =
            c.log_decay.data == nullptr ? fixed : std::exp(number_of<A, Team>(c.log_decay, at.entry, at.state, t, f));
    });
}

/// What token t writes at its key, and of the delta rule what it found surprising; `before` is the state that it meets.
template <class A, class Team>
HEED_DEVICE void find_update(const LinearAttentionCall& c, const Team& team, const StatePlace& at, std::int64_t t,
                             const A* before, const LinearRows<A>& rows) {
    const std::int64_t columns = c.columns();
    share(team, columns, [&](std::int64_t column) {
        A u = column < c.value_size ? number_of<A, Team>(c.v, at.entry, at.kv_head, t, column) : A{1};
        if (c.delta) {
            A answer = 0;
            for (std::int64_t f = 0; f < c.head_size; ++f) {
                answer += rows.decay[f] * before[f * columns + column] * rows.phi_k[f];
            }
            u -= answer;
            rows.surprise[column] = u;
            u *= number_of<A, Team>(c.beta, at.entry, at.state, t, column, A{1});
        }
        rows.update[column] = u;
    });
}

/// after = decay before + key update^T, which may be the same memory. Rows are ready and stay; the state is ready
/// behind it.
template <class A, class Team>
HEED_DEVICE void advance(const LinearAttentionCall& c, const Team& team, const StatePlace& at, std::int64_t t,
                         const A* before, A* after, const LinearRows<A>& rows) {
    const std::int64_t columns = c.columns();
    load_key(c, team, at, t, rows);
    team.meet();
    find_update(c, team, at, t, before, rows);
    team.meet();
    share(team, c.state_size(), [&](std::int64_t n) {
        const std::int64_t f = n / columns;
        after[n] = rows.decay[f] * before[n] + rows.phi_k[f] * rows.update[n % columns];
    });
    team.meet();
}

/// A query's row and what it reads of `state`: numerators, and behind them the denominator without epsilon.
template <class A, class Team>
HEED_DEVICE void read_query(const LinearAttentionCall& c, const Team& team, std::int64_t b, std::int64_t h,
                            std::int64_t t, const A* state, const LinearRows<A>& rows) {
    share(team, c.head_size, [&](std::int64_t f) {
        rows.phi_q[f] = static_cast<A>(c.scale) * feature_of(c.feature, number_of<A, Team>(c.q, b, h, t, f));
    });
    team.meet();
    share(team, c.columns(),
          [&](std::int64_t column) { rows.read[column] = read_column(c, rows.phi_q, state, column); });
    team.meet();
}
template <class A>
HEED_DEVICE A denominator_of(const LinearAttentionCall& c, const LinearRows<A>& rows) {
    return rows.read[c.value_size] + static_cast<A>(c.epsilon);
}

/// out of query t of head h.
template <class A, class Team>
HEED_DEVICE void answer(const LinearAttentionCall& c, const Team& team, std::int64_t b, std::int64_t h, std::int64_t t,
                        const A* state, const LinearRows<A>& rows) {
    read_query(c, team, b, h, t, state, rows);
    share(team, c.value_size, [&](std::int64_t e) {
        A x = rows.read[e];
        if (c.normalise) {
            const A denominator = denominator_of(c, rows);
            x = divides(c, denominator) ? x / denominator : A{0};
        }
        put_number_at<A, Team>(c.out, b, h, t, e, x);
    });
    team.meet();
}

/// Rows of `x` at and beyond `begin`, of the heads that read a state, become 0.
template <class A, class Team>
HEED_DEVICE void clear_rows(const Team& team, const Tensor4& x, std::int64_t b, std::int64_t first_head,
                            std::int64_t heads, std::int64_t begin, std::int64_t end, std::int64_t columns) {
    const std::int64_t rows = end > begin ? end - begin : 0;
    share(team, heads * rows * columns, [&](std::int64_t n) {
        put_number_at<A, Team>(x, b, first_head + n / columns / rows, begin + n / columns % rows, n % columns, A{0});
    });
}

// ---- Causal, a token at a time -------------------------------------------------------------------------------------

/// Forward of one state. memory: state_size() numbers.
template <class A, class Team>
HEED_DEVICE void linear_recurrence(const LinearAttentionCall& c, const Team& team, std::int64_t b, std::int64_t n,
                                   A* memory, const LinearRows<A>& rows) {
    const StatePlace at = state_place(c, b, n);
    const std::int64_t length = keys_of<Team>(c, b), first_head = n * c.readers();
    load_state<A>(c, team, c.initial_s, c.initial_z, at, memory);
    team.meet();
    for (std::int64_t t = 0; t < length; ++t) {
        advance(c, team, at, t, memory, memory, rows);
        for (std::int64_t h = 0; h < c.readers(); ++h) { answer(c, team, b, first_head + h, t, memory, rows); }
    }
    clear_rows<A>(team, c.out, b, first_head, c.readers(), length, c.queries, c.value_size);
    store_state(c, team, c.final_s, c.final_z, at, memory);
}

/// Memory of the backward pass of one key/value head, in numbers.
struct LinearBackwardMemory {
    std::int64_t state, kept, stretch_states, keys;

    constexpr explicit LinearBackwardMemory(const LinearAttentionCall& c)
        : state(c.state_size()),
          kept((c.keys + c.stretch - 1) / c.stretch * state),
          stretch_states((c.stretch + 1) * state),
          keys(c.sharers() > 1 ? c.keys * (c.head_size + c.value_size) : 0) {}
    constexpr std::int64_t total() const { return state + kept + stretch_states + keys; }
};

/// A number of dk or dv: the sum over the states of a key/value head, gathered in `sum` until the last.
template <class A, class Team>
HEED_DEVICE void give_key_gradient(const LinearAttentionCall& c, const Tensor4& to, const StatePlace& at,
                                   std::int64_t t, std::int64_t column, A* sum, A value) {
    const std::int64_t which = at.state % c.sharers();
    if (which > 0) { value += *sum; }
    if (which + 1 < c.sharers()) {
        *sum = value;
    } else {
        put_number_at<A, Team>(to, at.entry, at.kv_head, t, column, value);
    }
}

/// of out = numerator / denominator:  dn = dout / c,  dc = -(dout . numerator) / c^2, which stands behind dn. rows.grad
/// is ready behind it.
template <class A, class Team>
HEED_DEVICE void find_query_gradient(const LinearAttentionCall& c, const Team& team, std::int64_t b, std::int64_t h,
                                     std::int64_t t, const LinearRows<A>& rows) {
    A denominator = 1;
    bool passes = true;
    if (c.normalise) {
        denominator = denominator_of(c, rows);
        passes = divides(c, denominator);
        A dot = 0;
        for (std::int64_t e = team.lane(); e < c.value_size; e += team.lanes()) {
            dot += number_of<A, Team>(c.dout, b, h, t, e) * rows.read[e];
        }
        dot = team.sum_of_lanes(dot);
        if (team.thread() == 0) { rows.grad[c.value_size] = passes ? -dot / (denominator * denominator) : A{0}; }
    }
    share(team, c.value_size,
          [&](std::int64_t e) { rows.grad[e] = passes ? number_of<A, Team>(c.dout, b, h, t, e) / denominator : A{0}; });
    team.meet();
}

/// A query's way back: dq, and its share in the gradient of the state (where dstate is given).
template <class A, class Team>
HEED_DEVICE void query_backward(const LinearAttentionCall& c, const Team& team, std::int64_t b, std::int64_t h,
                                std::int64_t t, const A* state, A* dstate, const LinearRows<A>& rows) {
    const std::int64_t columns = c.columns();
    read_query(c, team, b, h, t, state, rows);
    find_query_gradient(c, team, b, h, t, rows);
    for (std::int64_t f = team.warp(); f < c.head_size; f += team.warps()) {
        A dphi = 0;
        for (std::int64_t column = team.lane(); column < columns; column += team.lanes()) {
            dphi += state[f * columns + column] * rows.grad[column];
            if (dstate != nullptr) { dstate[f * columns + column] += rows.phi_q[f] * rows.grad[column]; }
        }
        dphi = team.sum_of_lanes(dphi);
        if (team.lane() == 0) {
            const A x = number_of<A, Team>(c.q, b, h, t, f);
            put_number_at<A, Team>(c.dq, b, h, t, f, feature_gradient(c.feature, x, dphi * static_cast<A>(c.scale)));
        }
    }
    team.meet();
}

/// of S = R + key u^T, u = v or beta (v - R^T key), R = decay before. dstate is that of S and becomes that of `before`.
/// sums: what earlier states of the head gave the token's key and value.
template <class A, class Team>
HEED_DEVICE void token_backward(const LinearAttentionCall& c, const Team& team, const StatePlace& at, std::int64_t t,
                                const A* before, A* dstate, A* sums, const LinearRows<A>& rows) {
    const std::int64_t columns = c.columns();
    load_key(c, team, at, t, rows);
    team.meet();
    find_update(c, team, at, t, before, rows);
    share(team, columns, [&](std::int64_t column) {
        A de = read_column(c, rows.phi_k, dstate, column);
        if (c.delta) {
            const A dbeta = rows.surprise[column] * de;  // its own thread's, written just above
            if (c.beta_rows) { put_number_at<A, Team>(c.dbeta, at.entry, at.state, t, column, dbeta); }
            rows.surprise[column] = dbeta;
            de *= number_of<A, Team>(c.beta, at.entry, at.state, t, column, A{1});
        }
        rows.grad[column] = de;
        if (column < c.value_size) {
            give_key_gradient<A, Team>(c, c.dv, at, t, column, sums + c.head_size + column, de);
        }
    });
    team.meet();
    for (std::int64_t f = team.warp(); f < c.head_size; f += team.warps()) {
        const A decay = rows.decay[f], phi = rows.phi_k[f];
        A dphi = 0, slope = 0;
        for (std::int64_t column = team.lane(); column < columns; column += team.lanes()) {
            const A was = before[f * columns + column];
            A d = dstate[f * columns + column];
            dphi += d * rows.update[column];
            if (c.delta) {
                dphi -= decay * was * rows.grad[column];
                d -= phi * rows.grad[column];
            }
            slope += d * was;
            dstate[f * columns + column] = decay * d;
        }
        dphi = team.sum_of_lanes(dphi);
        slope = team.sum_of_lanes(slope);
        if (team.lane() == 0) {
            const A x = number_of<A, Team>(c.k, at.entry, at.kv_head, t, f);
            give_key_gradient<A, Team>(c, c.dk, at, t, f, sums + f, feature_gradient(c.feature, x, dphi));
            // Of a decay that is the same for all tokens, summed over them; of one per token, that token's.
            rows.slope[f] = c.log_decay.data == nullptr ? rows.slope[f] + slope : slope * decay;
            if (c.log_decay_rows) { put_number_at<A, Team>(c.dlog_decay, at.entry, at.state, t, f, rows.slope[f]); }
        }
    }
    team.meet();
    if (team.thread() == 0) {
        if (c.dlog_decay.data != nullptr && !c.log_decay_rows) {
            A sum = 0;
            for (std::int64_t f = 0; f < c.head_size; ++f) { sum += rows.slope[f]; }
            put_number_at<A, Team>(c.dlog_decay, at.entry, at.state, t, 0, sum);
        }
        if (c.dbeta.data != nullptr && !c.beta_rows) {
            A sum = 0;
            for (std::int64_t e = 0; e < c.value_size; ++e) { sum += rows.surprise[e]; }
            put_number_at<A, Team>(c.dbeta, at.entry, at.state, t, 0, sum);
        }
    }
    team.meet();
}

/// Gradients of padding: 0.
template <class A, class Team>
HEED_DEVICE void clear_padding(const LinearAttentionCall& c, const Team& team, const StatePlace& at,
                               std::int64_t length) {
    clear_rows<A>(team, c.dq, at.entry, at.state * c.readers(), c.readers(), length, c.queries, c.head_size);
    clear_rows<A>(team, c.dlog_decay, at.entry, at.state, 1, length, c.keys, c.log_decay_rows ? c.head_size : 1);
    clear_rows<A>(team, c.dbeta, at.entry, at.state, 1, length, c.keys, c.beta_rows ? c.value_size : 1);
    clear_rows<A>(team, c.dk, at.entry, at.kv_head, 1, length, c.keys, c.head_size);
    clear_rows<A>(team, c.dv, at.entry, at.kv_head, 1, length, c.keys, c.value_size);
}

/// Backward of one state: the states are found once more, every `stretch` tokens one is kept, those within a stretch
/// while its tokens go back. ddecay: the state's number, or null.
template <class A, class Team>
HEED_DEVICE void linear_recurrence_backward(const LinearAttentionCall& c, const Team& team, std::int64_t b,
                                            std::int64_t n, A* memory, double* ddecay, const LinearRows<A>& rows) {
    const StatePlace at = state_place(c, b, n);
    const LinearBackwardMemory sizes(c);
    const std::int64_t length = keys_of<Team>(c, b), size = sizes.state, key_size = c.head_size + c.value_size;
    A* const dstate = memory;
    A* const kept = dstate + size;
    A* const states = kept + sizes.kept;
    A* const sums = states + sizes.stretch_states;
    load_state<A>(c, team, c.initial_s, c.initial_z, at, states);
    load_state<A>(c, team, c.dfinal_s, c.dfinal_z, at, dstate);
    share(team, c.head_size, [&](std::int64_t f) { rows.slope[f] = 0; });
    team.meet();
    for (std::int64_t t = 0; t < length; ++t) {
        if (t % c.stretch == 0) {
            share(team, size, [&](std::int64_t i) { kept[t / c.stretch * size + i] = states[i]; });
        }
        advance(c, team, at, t, states, states, rows);
    }
    for (std::int64_t begin = length > 0 ? (length - 1) / c.stretch * c.stretch : -1; begin >= 0; begin -= c.stretch) {
        const std::int64_t end = begin + c.stretch < length ? begin + c.stretch : length;
        share(team, size, [&](std::int64_t i) { states[i] = kept[begin / c.stretch * size + i]; });
        team.meet();
        for (std::int64_t t = begin; t < end; ++t) {
            A* const before = states + (t - begin) * size;
            advance(c, team, at, t, before, before + size, rows);
        }
        for (std::int64_t t = end - 1; t >= begin; --t) {
            const A* const before = states + (t - begin) * size;
            for (std::int64_t h = n * c.readers(); h < (n + 1) * c.readers(); ++h) {
                query_backward(c, team, b, h, t, before + size, dstate, rows);
            }
            token_backward(c, team, at, t, before, dstate, sums + (sizes.keys > 0 ? t * key_size : 0), rows);
        }
    }
    store_state(c, team, c.dinitial_s, c.dinitial_z, at, dstate);
    clear_padding<A>(c, team, at, length);
    if (ddecay != nullptr && team.thread() == 0) {
        double sum = 0;
        for (std::int64_t f = 0; f < c.head_size; ++f) { sum += static_cast<double>(rows.slope[f]); }
        *ddecay = sum;
    }
    team.meet();
}

// ---- Not causal: one state for all queries -------------------------------------------------------------------------

/// Element `element` of the state behind all keys, which also goes to `final`.
template <class A, class Team>
HEED_DEVICE A whole_state_number(const LinearAttentionCall& c, const StatePlace& at, std::int64_t element) {
    const std::int64_t f = element / c.columns(), column = element % c.columns();
    A sum = state_number<A, Team>(c, c.initial_s, c.initial_z, at, f, column);
    const std::int64_t length = keys_of<Team>(c, at.entry);
    for (std::int64_t t = 0; t < length; ++t) {
        const A phi = feature_of(c.feature, number_of<A, Team>(c.k, at.entry, at.kv_head, t, f));
        sum += column < c.value_size ? phi * number_of<A, Team>(c.v, at.entry, at.kv_head, t, column) : phi;
    }
    put_state_number<A, Team>(c, c.final_s, c.final_z, at, f, column, sum);
    return sum;
}

/// The same of the gradient of that state: what every query adds to dfinal. grads [B,H,T,C] are rows.grad of each.
template <class A, class Team>
HEED_DEVICE A whole_dstate_number(const LinearAttentionCall& c, const StatePlace& at, std::int64_t element,
                                  const A* grads) {
    const std::int64_t columns = c.columns(), f = element / columns, column = element % columns;
    A sum = state_number<A, Team>(c, c.dfinal_s, c.dfinal_z, at, f, column);
    for (std::int64_t h = at.state * c.readers(); h < (at.state + 1) * c.readers(); ++h) {
        const A* grad = grads + (at.entry * c.heads + h) * c.queries * columns + column;
        for (std::int64_t t = 0; t < c.queries; ++t) {
            const A phi = feature_of(c.feature, number_of<A, Team>(c.q, at.entry, h, t, f));
            sum += static_cast<A>(c.scale) * phi * grad[t * columns];
        }
    }
    put_state_number<A, Team>(c, c.dinitial_s, c.dinitial_z, at, f, column, sum);
    return sum;
}

/// A query's way back where its share in the state's gradient is left to whole_dstate_number: rows.grad goes to `grad`.
template <class A, class Team>
HEED_DEVICE void whole_query_backward(const LinearAttentionCall& c, const Team& team, std::int64_t b, std::int64_t h,
                                      std::int64_t t, const A* state, A* grad, const LinearRows<A>& rows) {
    query_backward<A>(c, team, b, h, t, state, nullptr, rows);
    share(team, c.columns(), [&](std::int64_t column) { grad[column] = rows.grad[column]; });
}

/// dk and dv of key t: what the gradients of its head's states [B,N,F,C] give it.
template <class A, class Team>
HEED_DEVICE void whole_key_backward(const LinearAttentionCall& c, const Team& team, std::int64_t b, std::int64_t g,
                                    std::int64_t t, const A* dstates, const LinearRows<A>& rows) {
    const std::int64_t columns = c.columns();
    if (t >= keys_of<Team>(c, b)) {
        clear_rows<A>(team, c.dk, b, g, 1, t, t + 1, c.head_size);
        clear_rows<A>(team, c.dv, b, g, 1, t, t + 1, c.value_size);
        return;
    }
    const A* const first = dstates + (b * c.states + g * c.sharers()) * c.state_size();
    const StatePlace at{b, g * c.sharers(), g};
    load_key(c, team, at, t, rows);
    share(team, columns, [&](std::int64_t column) {
        rows.update[column] = column < c.value_size ? number_of<A, Team>(c.v, b, g, t, column) : A{1};
    });
    team.meet();
    share(team, c.value_size, [&](std::int64_t e) {
        A sum = 0;
        for (std::int64_t n = 0; n < c.sharers(); ++n) {
            sum += read_column(c, rows.phi_k, first + n * c.state_size(), e);
        }
        put_number_at<A, Team>(c.dv, b, g, t, e, sum);
    });
    for (std::int64_t f = team.warp(); f < c.head_size; f += team.warps()) {
        A dphi = 0;
        for (std::int64_t n = 0; n < c.sharers(); ++n) {
            const A* const row = first + n * c.state_size() + f * columns;
            for (std::int64_t column = team.lane(); column < columns; column += team.lanes()) {
                dphi += row[column] * rows.update[column];
            }
        }
        dphi = team.sum_of_lanes(dphi);
        if (team.lane() == 0) {
            const A x = number_of<A, Team>(c.k, b, g, t, f);
            put_number_at<A, Team>(c.dk, b, g, t, f, feature_gradient(c.feature, x, dphi));
        }
    }
}

}  // namespace heed::cuda

#undef HEED_DEVICE
