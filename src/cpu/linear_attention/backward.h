#pragma once
#include "cpu/linear_attention/forward.h"

/// With c the denominators, dn_i = dout_i / c_i, dc_i = -(dout_i . numerator_i) / c_i^2, and U, u the gradient of the
/// state behind a chunk:
///
///     X_i         = decay^(i+1) S dout_i + sum_{j<=i} decay^(i-j) (dout_i . v_j) phi(k_j)
///     dphi(q_i)   = X_i / c_i + dc_i z_i                 with dout_i . numerator_i = phi(q_i) . X_i
///     dv_j        = sum_{i>=j} A_ij dn_i + decay^(m-1-j) U^T phi(k_j)
///     dphi(k_j)   = sum_{i>=j} decay^(i-j) (dn_i . v_j + dc_i) phi(q_i) + decay^(m-1-j) (U v_j + u)
///     gradient of the state before: decay^m U + sum_i decay^(i+1) phi(q_i) dn_i^T
///
/// and, where it is wanted, with slope_n = n decay^(n-1), the derivative of decay^n:
///
///     ddecay     += sum_i slope_(i+1) phi(q_i) . (S dn_i + dc_i z) + sum_{j<i} slope_(i-j) phi(q_i).phi(k_j) (dn_i .
///     v_j + dc_i)
///                 + sum_j slope_(m-1-j) phi(k_j) . (U v_j + u) + slope_m (<S, U> + z . u)
///
/// One pass forward through the chunks gives dq, c and dc; one pass back gives dk and dv. Between them only c and dc
/// are kept, so that memory is 2 numbers a query and head beyond a wave of states; for ddecay also the state before
/// each chunk.

namespace heed::cpu {

template <class Isa>
struct LinearBackward {
    using K = Linear<Isa>;
    using State = StateSpace<Isa>;
    using S = Simd<Isa, Isa::lanes>;
    using V = F<Isa::lanes>;
    static constexpr int L = Isa::lanes;

    /// Floats of team memory: a state and a wave of changes for each state of a key/value head; c and dc of its
    /// queries; for ddecay a state and a sum for each chunk.
    static std::int64_t memory_floats(const LinearCall& call, std::int64_t wave) {
        const std::int64_t kept_chunks = call.ddecay != nullptr ? (call.keys + call.chunk - 1) / call.chunk : 0;
        return call.sharers * ((wave + 1) * State::floats(call) + 2 * round_up(call.readers * call.queries, 16) +
                               kept_chunks * (State::floats(call) + 1));
    }

    Team<Isa>& team;
    const LinearCall& call;
    LinearSizes<Isa> z;
    std::int64_t b, g;
    std::int64_t size, keys, chunks, query_chunks;
    float* inverse;  ///< [sharers * readers][T]: 1/c
    float* dc;
    float* kept_states;  ///< [sharers][chunks], for ddecay
    float* ddecay;       ///< [sharers][chunks]: what each chunk adds to it

    HEED_INLINE LinearBackward(Team<Isa>& with, std::int64_t entry, std::int64_t kv_head)
        : team(with),
          call(with.call),
          z(call),
          b(entry),
          g(kv_head),
          size(State::floats(call)),
          keys(call.keys_of(b)),
          chunks((keys + call.chunk - 1) / call.chunk),
          query_chunks((call.queries + call.chunk - 1) / call.chunk) {
        inverse = team.memory + call.sharers * (team.wave + 1) * size;
        dc = inverse + call.sharers * round_up(call.readers * call.queries, 16);
        kept_states = dc + call.sharers * round_up(call.readers * call.queries, 16);
        ddecay = kept_states + call.sharers * chunks * size;
    }

    HEED_INLINE std::int64_t length(std::int64_t c) const { return smaller(call.chunk, keys - c * call.chunk); }
    HEED_INLINE std::int64_t first_state() const { return g * call.sharers; }
    HEED_INLINE float factor(std::int64_t n, std::int64_t count) const {
        return call.decays ? decay_power(call, n, count) : 1.0F;
    }
    HEED_INLINE float* changes(std::int64_t sharer) const {
        return team.memory + (call.sharers + sharer * team.wave) * size;
    }
    HEED_INLINE State state(std::int64_t sharer) const { return State::at(call, team.memory + sharer * size); }
    /// Where c and dc of head h, row t lie.
    HEED_INLINE std::int64_t saved(std::int64_t h, std::int64_t t) const {
        return (h - first_state() * call.readers) * call.queries + t;
    }

    void powers(std::int64_t n, LinearScratch& scratch) const {
        fill_decay(call, n, scratch.power, scratch.falling);
        if (call.ddecay != nullptr) { fill_decay_slopes(call, n, scratch.slope, scratch.slope_falling); }
    }

    void pack(std::int64_t n, std::int64_t c, LinearScratch& scratch) const {
        powers(n, scratch);
        K::pack_keys(call, b, g, c * call.chunk, length(c), true, scratch);
    }

    /// dq, c and dc of `count` rows of head h, from the state before them and the packed keys. Returns what they add to
    /// ddecay by way of that state.
    double query_gradients(std::int64_t h, std::int64_t begin, std::int64_t count, State before,
                           LinearScratch& s) const {
        K::load_rows(call.dout, b, h, begin, count, call.value_size, s.dout, z.values);
        K::map_rows(call, call.q, b, h, begin, count, call.scale, s.phi_q, s);
        transpose_rows<Isa, L>([&](std::int64_t f) { return before.s + f * z.values; }, call.feature_size,
                               call.value_size, s.transposed_state, z.features);
        matrix_set<Isa, FloatProduct, L, Walk::along_row>(s.dout, z.values, s.transposed_state, z.features,
                                                          call.value_size, s.dphi, z.features, count,
                                                          z.feature_vectors());
        for (std::int64_t i = 0; call.ddecay != nullptr && i < count; ++i) {
            s.row_sum[i] = K::dot(s.phi_q + i * z.features, s.dphi + i * z.features, z.features);
        }
        double from_state = 0;
        if (call.causal) {
            K::lower_products(s.dout, z.values, s.keys.v_transposed, z.chunk, call.value_size, count, s.scores);
            K::finish_lower(call, s, z.chunk, count, nullptr, nullptr);
            K::add_lower(s.scores, z.chunk, s.keys.phi, z.features, count, call.decays ? s.power + 1 : nullptr,
                         s.keys.finite_phi, s.dphi);
        }
        __builtin_memcpy(s.running_z, before.z, static_cast<std::size_t>(z.features) * 4);
        for (std::int64_t i = 0; i < count; ++i) {
            float* row = s.dphi + i * z.features;
            float through = call.ddecay != nullptr ? s.row_sum[i] : 0.0F;
            if (call.normalise) {
                const float* phi_q = s.phi_q + i * z.features;
                if (call.causal) {
                    const V decay = S::all(s.power[1]);
                    for (std::int64_t f = 0; f < z.features; f += L) {
                        S::store(s.running_z + f,
                                 decay * S::load(s.running_z + f) + S::load(s.keys.phi + i * z.features + f));
                    }
                }
                const float c = K::dot(phi_q, s.running_z, z.features) + call.epsilon;
                const bool divided = divides(call, c);
                const float by = divided ? 1 / c : 0.0F;
                const float down = divided ? -K::dot(phi_q, row, z.features) * by * by : 0.0F;
                inverse[saved(h, begin + i)] = by;
                dc[saved(h, begin + i)] = down;
                if (call.ddecay != nullptr) {
                    through = divided ? through * by + down * K::dot(phi_q, before.z, z.features) : 0.0F;
                }
                if (divided) {
                    for (std::int64_t f = 0; f < z.features; f += L) {
                        S::store(row + f, S::all(by) * S::load(row + f) + S::all(down) * S::load(s.running_z + f));
                    }
                } else {
                    K::clear(row, z.features);
                }
            }
            if (call.ddecay != nullptr) {
                from_state += static_cast<double>(s.slope[i + 1]) * static_cast<double>(through);
            }
            if (call.scale != 1) { K::scale_rows(row, &call.scale, 1, z.features, row); }
            K::store_feature_gradient(call, call.q, call.dq, b, h, begin + i, row, s);
        }
        return from_state;
    }

    /// Forward through the chunks of state n.
    void queries(std::int64_t n) const {
        const std::int64_t sharer = n - first_state();
        float* change = changes(sharer);
        const State running = state(sharer);
        K::load_state(call, call.initial_s, call.initial_z, b, n, running);
        const auto each_head = [&](std::int64_t begin, std::int64_t count, State before, LinearScratch& scratch) {
            double from_state = 0;
            for (std::int64_t h = n * call.readers; h < (n + 1) * call.readers; ++h) {
                from_state += query_gradients(h, begin, count, before, scratch);
            }
            if (call.ddecay != nullptr) {
                const std::int64_t at = sharer * chunks + begin / call.chunk;
                ddecay[at] = static_cast<float>(from_state);
                __builtin_memcpy(kept_states + at * size, before.s, static_cast<std::size_t>(size) * 4);
            }
        };
        for (std::int64_t first = 0; first < chunks; first += team.wave) {
            const std::int64_t wave = smaller(team.wave, chunks - first);
            team.each(wave, [&](std::int64_t w, LinearScratch& scratch) {
                pack(n, first + w, scratch);
                K::key_change(call, scratch, State::at(call, change + w * size));
            });
            for (std::int64_t w = 0; w < wave; ++w) {
                K::exchange(call, running, factor(n, length(first + w)), change + w * size);
            }
            if (!call.causal) { continue; }
            team.each(wave, [&](std::int64_t w, LinearScratch& scratch) {
                if (team.repack()) { pack(n, first + w, scratch); }
                each_head((first + w) * call.chunk, length(first + w), State::at(call, change + w * size), scratch);
            });
        }
        if (!call.causal) {
            team.each(query_chunks, [&](std::int64_t c, LinearScratch& scratch) {
                const std::int64_t begin = c * call.chunk;
                fill_decay(call, n, scratch.power, scratch.falling);
                each_head(begin, smaller(call.chunk, call.queries - begin), running, scratch);
            });
        }
        for (std::int64_t h = n * call.readers; h < (n + 1) * call.readers; ++h) {
            clear_rows(call.dq, call.head_size, b, h, call.queries_of(b), call.queries);
        }
    }

    /// dn to s.dout and phi(q) to s.phi_q.
    void load_queries(std::int64_t h, std::int64_t begin, std::int64_t count, LinearScratch& s) const {
        K::load_rows(call.dout, b, h, begin, count, call.value_size, s.dout, z.values);
        if (call.normalise) { K::scale_rows(s.dout, inverse + saved(h, begin), count, z.values, s.dout); }
        K::map_rows(call, call.q, b, h, begin, count, call.scale, s.phi_q, s);
    }

    /// What `count` rows add to the gradient of the state before them.
    void query_change(std::int64_t n, std::int64_t begin, std::int64_t count, State change, LinearScratch& s) const {
        powers(n, s);
        K::clear(change.s, size);
        for (std::int64_t h = n * call.readers; h < (n + 1) * call.readers; ++h) {
            load_queries(h, begin, count, s);
            const float* phi_q = s.phi_q;
            if (call.decays) {
                K::scale_rows(s.phi_q, s.power + 1, count, z.features, s.scaled_q);
                phi_q = s.scaled_q;
            }
            matrix_add<Isa, FloatProduct, L, Walk::along_column>(
                phi_q, z.features, s.dout, z.values, change.s, z.values, call.feature_size, z.value_vectors(),
                Old::keep, nullptr, [count](std::int64_t, std::int64_t) {
                    return Range{0, count};
                });
            for (std::int64_t i = 0; call.normalise && i < count; ++i) {
                K::add_row(change.z, phi_q + i * z.features, dc[saved(h, begin + i)], z.features);
            }
        }
    }

    /// dk and dv of chunk c. after(sharer): gradient of the state behind it.
    template <class After>
    void key_gradients(std::int64_t c, After after, LinearScratch& s) const {
        const std::int64_t count = length(c);
        const std::int64_t begin = c * call.chunk;
        for (std::int64_t sharer = 0; sharer < call.sharers; ++sharer) {
            const std::int64_t n = first_state() + sharer;
            const State up = after(sharer);
            // Of several states, the first starts the sums and the others are added to them.
            float* dphi = sharer == 0 ? s.dphi_k : s.dphi;
            float* dv = sharer == 0 ? s.dv : s.sums;
            if (sharer == 0) {
                pack(n, c, s);
            } else {
                powers(n, s);
            }
            double slopes = 0;
            const float* left = call.decays ? s.falling + (call.chunk - count) : nullptr;
            matrix_set<Isa, FloatProduct, L, Walk::along_row>(s.keys.phi, z.features, up.s, z.values, call.feature_size,
                                                              dv, z.values, count, z.value_vectors());
            transpose_rows<Isa, L>([&](std::int64_t f) { return up.s + f * z.values; }, call.feature_size,
                                   call.value_size, s.transposed_state, z.features);
            matrix_set<Isa, FloatProduct, L, Walk::along_row>(s.keys.v, z.values, s.transposed_state, z.features,
                                                              call.value_size, dphi, z.features, count,
                                                              z.feature_vectors());
            for (std::int64_t j = 0; call.normalise && j < count; ++j) {
                K::add_row(dphi + j * z.features, up.z, 1, z.features);
            }
            for (std::int64_t j = 0; call.ddecay != nullptr && j < count; ++j) {
                slopes += static_cast<double>(s.slope[count - 1 - j]) *
                          static_cast<double>(K::dot(s.keys.phi + j * z.features, dphi + j * z.features, z.features));
            }
            if (call.causal) {
                for (std::int64_t h = n * call.readers; h < (n + 1) * call.readers; ++h) {
                    load_queries(h, begin, count, s);
                    const float* by = h == n * call.readers ? left : nullptr;
                    K::lower_products(s.phi_q, z.features, s.keys.transposed, z.chunk, call.feature_size, count,
                                      s.scores);
                    if (call.ddecay != nullptr) {
                        __builtin_memcpy(s.plain_scores, s.scores, static_cast<std::size_t>(count * z.chunk) * 4);
                    }
                    K::finish_lower(call, s, z.chunk, count, nullptr, nullptr);
                    K::add_upper(s.scores, z.chunk, s.dout, z.values, count, by, K::finite(s.dout, count * z.values),
                                 dv);
                    K::lower_products(s.dout, z.values, s.keys.v_transposed, z.chunk, call.value_size, count, s.scores);
                    const float* more = call.normalise ? dc + saved(h, begin) : nullptr;
                    if (call.ddecay != nullptr) { slopes += K::inner_slopes(call, s, z.chunk, count, more); }
                    K::finish_lower(call, s, z.chunk, count, more, nullptr);
                    K::add_upper(s.scores, z.chunk, s.phi_q, z.features, count, by,
                                 K::finite(s.phi_q, count * z.features), dphi);
                }
            }
            if (call.ddecay != nullptr) {
                const std::int64_t at = sharer * chunks + c;
                slopes += static_cast<double>(s.slope[count]) *
                          static_cast<double>(K::dot(kept_states + at * size, up.s, size));
                ddecay[at] += static_cast<float>(slopes);
            }
            if (sharer > 0) {
                K::add_row(s.dphi_k, dphi, 1, count * z.features);
                K::add_row(s.dv, dv, 1, count * z.values);
            }
        }
        for (std::int64_t j = 0; j < count; ++j) {
            store_row<Isa>(call.dv.dtype, address(call.dv, b, g, begin + j), call.dv.column, call.value_size,
                           s.dv + j * z.values, 1);
            K::store_feature_gradient(call, call.k, call.dk, b, g, begin + j, s.dphi_k + j * z.features, s);
        }
    }

    /// Back through the chunks of all states of the key/value head.
    void keys_and_values() const {
        for (std::int64_t sharer = 0; sharer < call.sharers; ++sharer) {
            K::load_state(call, call.dfinal_s, call.dfinal_z, b, first_state() + sharer, state(sharer));
        }
        if (!call.causal) {
            for (std::int64_t first = 0; first < query_chunks; first += team.wave) {
                const std::int64_t wave = smaller(team.wave, query_chunks - first);
                team.each(wave, [&](std::int64_t w, LinearScratch& scratch) {
                    const std::int64_t begin = (first + w) * call.chunk;
                    query_change(first_state(), begin, smaller(call.chunk, call.queries - begin),
                                 State::at(call, changes(0) + w * size), scratch);
                });
                for (std::int64_t w = 0; w < wave; ++w) { K::exchange(call, state(0), 1, changes(0) + w * size); }
            }
            team.each(chunks, [&](std::int64_t c, LinearScratch& scratch) {
                key_gradients(
                    c, [&](std::int64_t) { return state(0); }, scratch);
            });
        }
        // The last wave first, and in each the last chunk first.
        for (std::int64_t end = chunks; call.causal && end > 0; end -= smaller(team.wave, end)) {
            const std::int64_t wave = smaller(team.wave, end);
            team.each(wave * call.sharers, [&](std::int64_t task, LinearScratch& scratch) {
                const std::int64_t sharer = task / wave;
                const std::int64_t c = end - 1 - task % wave;
                query_change(first_state() + sharer, c * call.chunk, length(c),
                             State::at(call, changes(sharer) + task % wave * size), scratch);
            });
            for (std::int64_t task = 0; task < wave * call.sharers; ++task) {
                const std::int64_t sharer = task / wave;
                K::exchange(call, state(sharer), factor(first_state() + sharer, length(end - 1 - task % wave)),
                            changes(sharer) + task % wave * size);
            }
            team.each(wave, [&](std::int64_t w, LinearScratch& scratch) {
                key_gradients(
                    end - 1 - w, [&](std::int64_t sharer) { return State::at(call, changes(sharer) + w * size); },
                    scratch);
            });
        }
        clear_rows(call.dk, call.head_size, b, g, keys, call.keys);
        clear_rows(call.dv, call.value_size, b, g, keys, call.keys);
        for (std::int64_t sharer = 0; sharer < call.sharers; ++sharer) {
            K::store_state(call, call.dinitial_s, call.dinitial_z, b, first_state() + sharer, state(sharer));
        }
    }

    void run() const {
        for (std::int64_t sharer = 0; sharer < call.sharers; ++sharer) { queries(first_state() + sharer); }
        keys_and_values();
        for (std::int64_t sharer = 0; call.ddecay != nullptr && sharer < call.sharers; ++sharer) {
            double sum = 0;
            for (std::int64_t c = 0; c < chunks; ++c) { sum += static_cast<double>(ddecay[sharer * chunks + c]); }
            call.ddecay[b * call.states + first_state() + sharer] = sum;
        }
    }
};

}  // namespace heed::cpu
