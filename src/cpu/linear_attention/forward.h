#pragma once
#include "cpu/linear_attention/chunk.h"

namespace heed::cpu {

/// Who works on one head: a worker by itself, chunk after chunk, or all of them on a wave of chunks at a time (where
/// there are fewer heads than threads). What a chunk adds to the state is summed by itself either way, so the bits
/// agree.
template <class Isa>
struct Team {
    const LinearCall& call;
    detail::Pool& pool;
    bool all;
    bool backward;
    std::int64_t wave;  ///< chunks at a time
    LinearScratch own;  ///< of a worker by itself
    float* memory;      ///< see *_floats of the pass

    template <class Function>
    void each(std::int64_t count, Function&& function) {
        if (all) {
            detail::parallel(pool, count, true, [&](std::int64_t task, int by) {
                LinearScratch scratch;
                lay_out(by, &scratch);
                function(task, scratch);
            });
        } else {
            for (std::int64_t task = 0; task < count; ++task) { function(task, own); }
        }
    }
    /// Keys stay packed between the phases of a wave where one worker does both.
    bool repack() const { return all; }

    void lay_out(int by, LinearScratch* scratch) const {
        const std::size_t bytes = LinearScratch::layout<Isa>(call, backward, nullptr, nullptr);
        LinearScratch::layout<Isa>(call, backward, static_cast<char*>(pool.scratch(by).at_least(bytes)), scratch);
    }
};

template <class Isa>
struct LinearForward {
    using K = Linear<Isa>;
    using State = StateSpace<Isa>;
    static constexpr int L = Isa::lanes;

    /// Floats of team memory: the running state and a change for each chunk of a wave.
    static std::int64_t memory_floats(const LinearCall& call, std::int64_t wave) {
        return (wave + 1) * State::floats(call);
    }

    /// out of rows [begin, begin + count) of head h, from the state before them and the packed keys.
    static void answer(const LinearCall& call, std::int64_t b, std::int64_t h, std::int64_t begin, std::int64_t count,
                       State state, LinearScratch& scratch) {
        const LinearSizes<Isa> z(call);
        K::map_rows(call, call.q, b, h, begin, count, call.scale, scratch.phi_q, scratch);
        matrix_set<Isa, FloatProduct, L, Walk::along_row>(scratch.phi_q, z.features, state.s, z.values,
                                                          call.feature_size, scratch.sums, z.values, count,
                                                          z.value_vectors());
        if (call.causal) {
            K::lower_products(scratch.phi_q, z.features, scratch.keys.transposed, z.chunk, call.feature_size, count,
                              scratch.scores);
            K::finish_lower(call, scratch, z.chunk, count, nullptr, call.normalise ? scratch.row_sum : nullptr);
            K::add_lower(scratch.scores, z.chunk, scratch.keys.v, z.values, count,
                         call.decays ? scratch.power + 1 : nullptr, scratch.keys.finite_v, scratch.sums);
        }
        for (std::int64_t i = 0; i < count; ++i) {
            float* row = scratch.sums + i * z.values;
            float factor = 1;
            if (call.normalise) {
                float denominator = K::dot(scratch.phi_q + i * z.features, state.z, z.features);
                if (call.causal) { denominator = scratch.power[i + 1] * denominator + scratch.row_sum[i]; }
                denominator += call.epsilon;
                if (divides(call, denominator)) {
                    factor = 1 / denominator;
                } else {
                    K::clear(row, z.values);
                }
            }
            store_row<Isa>(call.out.dtype, address(call.out, b, h, begin + i), call.out.column, call.value_size, row,
                           factor);
            fetch_ahead_to_write(address(call.out, b, h, begin + i + call.chunk),
                                 call.value_size * bytes_of(call.out.dtype));
        }
    }

    static void run(Team<Isa>& team, std::int64_t b, std::int64_t n) {
        const LinearCall& call = team.call;
        const std::int64_t g = n / call.sharers;
        const std::int64_t size = State::floats(call);
        const State state = State::at(call, team.memory);
        float* changes = team.memory + size;
        const std::int64_t keys = call.keys_of(b);
        const std::int64_t chunks = (keys + call.chunk - 1) / call.chunk;
        const auto length = [&](std::int64_t c) { return smaller(call.chunk, keys - c * call.chunk); };
        const auto pack = [&](std::int64_t c, LinearScratch& scratch) {
            fill_decay(call, n, scratch.power, scratch.falling);
            K::pack_keys(call, b, g, c * call.chunk, length(c), false, scratch);
        };
        K::load_state(call, call.initial_s, call.initial_z, b, n, state);
        for (std::int64_t first = 0; first < chunks; first += team.wave) {
            const std::int64_t wave = smaller(team.wave, chunks - first);
            team.each(wave, [&](std::int64_t w, LinearScratch& scratch) {
                pack(first + w, scratch);
                K::key_change(call, scratch, State::at(call, changes + w * size));
            });
            for (std::int64_t w = 0; w < wave; ++w) {
                const float factor = call.decays ? decay_power(call, n, length(first + w)) : 1.0F;
                K::exchange(call, state, factor, changes + w * size);
            }
            if (!call.causal) { continue; }
            team.each(wave, [&](std::int64_t w, LinearScratch& scratch) {
                if (team.repack()) { pack(first + w, scratch); }
                for (std::int64_t h = n * call.readers; h < (n + 1) * call.readers; ++h) {
                    answer(call, b, h, (first + w) * call.chunk, length(first + w), State::at(call, changes + w * size),
                           scratch);
                }
            });
        }
        if (!call.causal) {
            team.each((call.queries + call.chunk - 1) / call.chunk, [&](std::int64_t c, LinearScratch& scratch) {
                const std::int64_t begin = c * call.chunk;
                for (std::int64_t h = n * call.readers; h < (n + 1) * call.readers; ++h) {
                    answer(call, b, h, begin, smaller(call.chunk, call.queries - begin), state, scratch);
                }
            });
        }
        for (std::int64_t h = n * call.readers; h < (n + 1) * call.readers; ++h) {
            clear_rows(call.out, call.value_size, b, h, call.queries_of(b), call.queries);
        }
        K::store_state(call, call.final_s, call.final_z, b, n, state);
    }
};

/// A token at a time: the state is read and written once for each.
template <class Isa>
struct LinearRecurrent {
    using K = Linear<Isa>;
    using S = Simd<Isa, Isa::lanes>;
    using V = F<Isa::lanes>;
    static constexpr int L = Isa::lanes;

    /// S = decay S + phi_k v^T for NV vectors of columns; sums = phi_q S.
    template <int NV>
    static HEED_INLINE void step_columns(const float* phi_k, const float* v, const float* phi_q, std::int64_t features,
                                         float decay, float* s, std::int64_t stride, float* sums) {
        V value[NV];
        V sum[NV] = {};
        HEED_UNROLL
        for (int n = 0; n < NV; ++n) { value[n] = S::load(v + n * L); }
        const V factor = S::all(decay);
        for (std::int64_t f = 0; f < features; ++f) {
            const V key = S::all(phi_k[f]);
            const V query = S::all(phi_q[f]);
            HEED_UNROLL
            for (int n = 0; n < NV; ++n) {
                const V x = factor * S::load(s + f * stride + n * L) + key * value[n];
                S::store(s + f * stride + n * L, x);
                sum[n] += query * x;
            }
        }
        HEED_UNROLL
        for (int n = 0; n < NV; ++n) { S::store(sums + n * L, sum[n]); }
    }

    static void run(const LinearCall& call, std::int64_t b, std::int64_t n, float* memory, LinearScratch& scratch) {
        const LinearSizes<Isa> z(call);
        const std::int64_t g = n / call.sharers;
        StateSpace<Isa> state = StateSpace<Isa>::at(call, memory);
        std::int64_t stride = z.values;
        const bool in_place = state_in_place(call, L);
        if (in_place) {
            state.s = reinterpret_cast<float*>(address(call.final_s, b, n, 0));
            stride = call.final_s.row;
            K::clear(state.z, z.features);
            if (call.initial_z.data != nullptr) {
                load_row<Isa>(call.initial_z.dtype, address(call.initial_z, b, n, 0), call.initial_z.row,
                              call.feature_size, state.z);
            }
        } else {
            K::load_state(call, call.initial_s, call.initial_z, b, n, state);
        }
        fill_decay(call, n, scratch.power, scratch.falling);
        const float decay = scratch.power[1];
        const float* phi_k = scratch.keys.phi;
        for (std::int64_t t = 0; t < call.keys_of(b); ++t) {
            K::map_rows(call, call.k, b, g, t, 1, 1, scratch.keys.phi, scratch);
            K::load_rows(call.v, b, g, t, 1, call.value_size, scratch.keys.v, z.values);
            for (std::int64_t c = 0; c < z.features; c += L) {
                S::store(state.z + c, S::all(decay) * S::load(state.z + c) + S::load(phi_k + c));
            }
            for (std::int64_t r = 0; r < call.readers; ++r) {
                const std::int64_t h = n * call.readers + r;
                K::map_rows(call, call.q, b, h, t, 1, call.scale, scratch.phi_q, scratch);
                if (r == 0) {
                    for (int first = 0; first < z.value_vectors(); first += 4) {
                        with_constant<4>(smaller(4, z.value_vectors() - first), [&]<int NV>() {
                            step_columns<NV>(phi_k, scratch.keys.v + first * L, scratch.phi_q, call.feature_size, decay,
                                             state.s + first * L, stride, scratch.sums + first * L);
                        });
                    }
                } else {
                    matrix_set<Isa, FloatProduct, L, Walk::along_row>(scratch.phi_q, z.features, state.s, stride,
                                                                      call.feature_size, scratch.sums, z.values, 1,
                                                                      z.value_vectors());
                }
                float factor = 1;
                if (call.normalise) {
                    const float denominator = K::dot(scratch.phi_q, state.z, z.features) + call.epsilon;
                    if (divides(call, denominator)) {
                        factor = 1 / denominator;
                    } else {
                        K::clear(scratch.sums, z.values);
                    }
                }
                store_row<Isa>(call.out.dtype, address(call.out, b, h, t), call.out.column, call.value_size,
                               scratch.sums, factor);
            }
        }
        for (std::int64_t h = n * call.readers; h < (n + 1) * call.readers; ++h) {
            clear_rows(call.out, call.value_size, b, h, call.queries_of(b), call.queries);
        }
        K::store_state(call, in_place ? Tensor4{} : call.final_s, call.final_z, b, n, state);
    }
};

}  // namespace heed::cpu
