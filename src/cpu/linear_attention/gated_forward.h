#pragma once
#include "cpu/linear_attention/gated_chunk.h"

namespace heed::cpu {

template <class Isa>
struct GatedForward : GatedChunk<Isa> {
    using Base = GatedChunk<Isa>;
    using K = Linear<Isa>;
    using S = Simd<Isa, Isa::lanes>;
    using V = F<Isa::lanes>;
    using Base::call, Base::count, Base::L, Base::s, Base::z;

    using Base::Base;

    /// Of head h, from the state before the chunk.
    void answer(std::int64_t b, std::int64_t h, std::int64_t begin, bool finite_u) const {
        K::map_rows(call, call.q, b, h, begin, count, call.scale, s.x, s.rows);
        this->products(s.x, false, 1, s.scores);
        this->fade(s.x, 1, s.faded);
        matrix_set<Isa, FloatProduct, L, Walk::along_row>(s.faded, z.features, s.state, z.values, call.feature_size,
                                                          s.sums, z.values, count, z.value_vectors());
        K::add_lower(s.scores, z.chunk, s.u, z.values, count, nullptr, finite_u, s.sums);
        for (std::int64_t i = 0; i < count; ++i) {
            store_row<Isa>(call.out.dtype, address(call.out, b, h, begin + i), call.out.column, call.value_size,
                           s.sums + i * z.values, 1);
        }
    }

    void run(std::int64_t b, std::int64_t n) {
        load(call.initial_s, b, n);
        const std::int64_t tokens = call.keys_of(b);
        for (std::int64_t begin = 0; begin < tokens; begin += call.chunk) {
            Base::load(b, n, begin, smaller(call.chunk, tokens - begin));
            if (call.delta) { this->solve(s.state); }
            const bool finite_u = K::finite(s.u, count * z.values);
            for (std::int64_t h = n * call.readers; h < (n + 1) * call.readers; ++h) { answer(b, h, begin, finite_u); }
            this->advance(s.state);
        }
        finish(b, n, call.final_s);
    }

    // ---- A token at a time -----------------------------------------------------------------------------------------

    /// S = decay S + k u^T for NV vectors of columns; sums = x S, x the first reader's query.
    template <int NV>
    HEED_INLINE void step_columns(float* state, std::int64_t stride, std::int64_t column) const {
        V written[NV];
        V sum[NV] = {};
        HEED_UNROLL
        for (int n = 0; n < NV; ++n) { written[n] = S::load(s.u + column + n * L); }
        for (std::int64_t f = 0; f < call.feature_size; ++f) {
            const V decay = S::all(s.total[f]);
            const V key = S::all(s.k[f]);
            const V query = S::all(s.x[f]);
            HEED_UNROLL
            for (int n = 0; n < NV; ++n) {
                float* at = state + f * stride + column + n * L;
                const V next = decay * S::load(at) + key * written[n];
                S::store(at, next);
                sum[n] += query * next;
            }
        }
        HEED_UNROLL
        for (int n = 0; n < NV; ++n) { S::store(s.sums + column + n * L, sum[n]); }
    }

    void read(const float* x, const float* state, std::int64_t stride) const {
        matrix_set<Isa, FloatProduct, L, Walk::along_row>(x, z.features, state, stride, call.feature_size, s.sums,
                                                          z.values, 1, z.value_vectors());
    }

    void step(std::int64_t b, std::int64_t n, std::int64_t t, float* state, std::int64_t stride) {
        Base::load(b, n, t, 1);
        if (call.delta) {
            this->fade(s.k, 1, s.faded);
            read(s.faded, state, stride);
            for (std::int64_t c = 0; c < z.values; c += L) {
                S::store(s.u + c, S::all(s.beta[0]) * (S::load(s.v + c) - S::load(s.sums + c)));
            }
        }
        for (std::int64_t h = n * call.readers; h < (n + 1) * call.readers; ++h) {
            K::map_rows(call, call.q, b, h, t, 1, call.scale, s.x, s.rows);
            if (h > n * call.readers) {
                read(s.x, state, stride);
            } else {
                for (int v = 0; v < z.value_vectors(); v += 4) {
                    with_constant<4>(smaller(4, z.value_vectors() - v),
                                     [&]<int NV>() { step_columns<NV>(state, stride, v * L); });
                }
            }
            store_row<Isa>(call.out.dtype, address(call.out, b, h, t), call.out.column, call.value_size, s.sums, 1);
        }
    }

    void run_steps(std::int64_t b, std::int64_t n) {
        const bool in_place = state_in_place(call, L);
        float* state = in_place ? reinterpret_cast<float*>(address(call.final_s, b, n, 0)) : s.state;
        const std::int64_t stride = in_place ? call.final_s.row : z.values;
        if (!in_place) { load(call.initial_s, b, n); }
        for (std::int64_t t = 0; t < call.keys_of(b); ++t) { step(b, n, t, state, stride); }
        finish(b, n, in_place ? Tensor4{} : call.final_s);
    }

    /// Padding and the final state.
    void finish(std::int64_t b, std::int64_t n, const Tensor4& to) const {
        for (std::int64_t h = n * call.readers; h < (n + 1) * call.readers; ++h) {
            clear_rows(call.out, call.value_size, b, h, call.keys_of(b), call.queries);
        }
        K::store_state(call, to, {}, b, n, {s.state, nullptr});
    }

    void load(const Tensor4& from, std::int64_t b, std::int64_t n) const {
        K::clear(s.state, call.feature_size * z.values);
        if (from.data == nullptr) { return; }
        K::load_rows(from, b, n, 0, call.feature_size, call.value_size, s.state, z.values);
    }
};

}  // namespace heed::cpu
