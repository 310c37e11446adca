#pragma once
#include "cpu/linear_attention/gated_chunk.h"

namespace heed::cpu {

template <class Isa>
struct GatedForward : GatedChunk<Isa> {
    using Base = GatedChunk<Isa>;
    using K = Linear<Isa>;
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
        const StateSpace<Isa> state{s.state, nullptr};
        load(call.initial_s, b, n);
        const std::int64_t tokens = call.keys_of(b);
        for (std::int64_t begin = 0; begin < tokens; begin += call.chunk) {
            Base::load(b, n, begin, smaller(call.chunk, tokens - begin));
            if (call.delta) { this->solve(s.state); }
            const bool finite_u = K::finite(s.u, count * z.values);
            for (std::int64_t h = n * call.readers; h < (n + 1) * call.readers; ++h) { answer(b, h, begin, finite_u); }
            this->advance(s.state);
        }
        for (std::int64_t h = n * call.readers; h < (n + 1) * call.readers; ++h) {
            clear_rows(call.out, call.value_size, b, h, tokens, call.queries);
        }
        K::store_state(call, call.final_s, {}, b, n, state);
    }

    void load(const Tensor4& from, std::int64_t b, std::int64_t n) const {
        K::clear(s.state, call.feature_size * z.values);
        if (from.data == nullptr) { return; }
        K::load_rows(from, b, n, 0, call.feature_size, call.value_size, s.state, z.values);
    }
};

}  // namespace heed::cpu
