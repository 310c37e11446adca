#pragma once
#include "cpu/linear_attention/gated_chunk.h"

/// The way back through the chunks of a key/value head, the last one first; states before the chunks are kept from a
/// way forth. Letters as in gated_chunk.h; D marks the gradient of the state behind the chunk.
///
///     du_j = (R_mj k_j) D + sum_i A_ij dout_i            de_i = beta_i (du_i - sum_{j > i} P_ji de_j)   delta rule
///     dA_ij = dout_i . u_j                               dP_ij = -de_i . u_j,  dv = de (otherwise du)
///     D' = R_m D + sum_i (R_i q_i) dout_i^T - sum_i (R_i k_i) de_i^T
///
/// A decay lies in R_ij where i is at or behind it and j before it. With the gradient of x_i as what reads (q, and k in
/// P) and that of k_j as what is read, token s gets sum_{i >= s} x_i dx_i - sum_{j >= s} k_j dk_j + D . S'.

namespace heed::cpu {

template <class Isa>
struct GatedBackward : GatedChunk<Isa> {
    using Base = GatedChunk<Isa>;
    using K = Linear<Isa>;
    using S = Simd<Isa, Isa::lanes>;
    using V = F<Isa::lanes>;
    using Depth = typename Base::Depth;
    using Base::call, Base::count, Base::L, Base::s, Base::z;

    std::int64_t b, g;

    GatedBackward(const GatedCall& of, GatedScratch& scratch, std::int64_t entry, std::int64_t head)
        : Base(of, scratch), b(entry), g(head) {}

    std::int64_t state_floats() const { return call.feature_size * z.values; }
    std::int64_t tokens() const { return call.keys_of(b); }
    std::int64_t chunks() const { return (tokens() + call.chunk - 1) / call.chunk; }
    float* saved(std::int64_t sharer, std::int64_t chunk) const {
        return s.saved + (sharer * chunks() + chunk) * state_floats();
    }
    void load(std::int64_t n, std::int64_t chunk) {
        const std::int64_t begin = chunk * call.chunk;
        Base::load(b, n, begin, smaller(call.chunk, tokens() - begin));
    }
    void load_state(const Tensor4& from, std::int64_t n, float* to) const {
        K::clear(to, state_floats());
        if (from.data != nullptr) { K::load_rows(from, b, n, 0, call.feature_size, call.value_size, to, z.values); }
    }

    /// The states before the chunks.
    void go_forth(std::int64_t sharer) {
        const std::int64_t n = g * call.sharers + sharer;
        load_state(call.initial_s, n, s.state);
        for (std::int64_t c = 0; c < chunks(); ++c) {
            Base::copy(s.state, state_floats(), saved(sharer, c));
            if (c + 1 == chunks()) { break; }
            load(n, c);
            if (call.delta) { this->solve(s.state); }
            this->advance(s.state);
        }
    }

    // ---- Inside a chunk --------------------------------------------------------------------------------------------

    /// Of scores_ij = x_i . R_ij k_j:  dx_i += sum_j dscores_ij R_ij k_j,  dk_j += sum_i dscores_ij R_ij x_i
    void products_backward(const float* x, float* dscores, float* dx, float* dk) const {
        if (!call.each_row) {
            for (std::int64_t n = 0; n < count * z.chunk; n += L) {
                S::store(dscores + n, S::load(dscores + n) * S::load(s.between + n));
            }
            K::add_lower(dscores, z.chunk, s.k, z.features, count, nullptr, K::finite(s.k, count * z.features), dx);
            K::add_upper(dscores, z.chunk, x, z.features, count, nullptr, K::finite(x, count * z.features), dk);
            return;
        }
        readers_backward(dscores, dx);
        keys_backward(x, dscores, dk);
    }
    void readers_backward(const float* dscores, float* dx) const {
        for (std::int64_t first = 0; first < count; first += gated_block) {
            const std::int64_t rows = smaller(gated_block, count - first);
            if (first > 0) {
                matrix_set<Isa, FloatProduct, L, Walk::along_row>(dscores + first * z.chunk, z.chunk, s.keys,
                                                                  z.features, first, s.faded, z.features, rows,
                                                                  z.feature_vectors());
                this->fade_from(s.faded, 1, first, rows, s.faded);
                K::add_row(dx + first * z.features, s.faded, 1, rows * z.features);
            }
            for (std::int64_t i = 0; i < rows; ++i) {
                this->fade_block(first, i);
                for (std::int64_t j = 0; j <= i; ++j) {
                    K::add_row(dx + (first + i) * z.features, s.block + j * z.features,
                               dscores[(first + i) * z.chunk + first + j], z.features);
                }
            }
            if (first + rows == count) { break; }
            float* by = s.rows.staging;
            this->block_total(first, rows, by);
            for (std::int64_t j = 0; j < first; ++j) { multiply(s.keys + j * z.features, by); }
            Base::copy(s.block, rows * z.features, s.keys + first * z.features);
        }
    }
    /// row = by row
    HEED_INLINE void multiply(float* row, const float* by) const {
        for (std::int64_t c = 0; c < z.features; c += L) { S::store(row + c, S::load(row + c) * S::load(by + c)); }
    }
    void keys_backward(const float* x, const float* dscores, float* dk) const {
        float* sums = s.keys;  // of keys faded up to the block at hand
        K::clear(sums, count * z.features);
        for (std::int64_t first = (count - 1) / gated_block * gated_block; first >= 0; first -= gated_block) {
            const std::int64_t rows = smaller(gated_block, count - first);
            for (std::int64_t i = rows - 1; i >= 0; --i) {
                const float* row = x + (first + i) * z.features;
                for (std::int64_t j = 0; j <= i; ++j) {
                    float* sum = sums + (first + j) * z.features;
                    if (i + 1 < rows) { multiply(sum, s.a + (first + i + 1) * z.features); }
                    K::add_row(sum, row, dscores[(first + i) * z.chunk + first + j], z.features);
                }
            }
            if (first == 0) { break; }
            float* by = s.rows.staging;
            this->block_total(first, rows, by);
            for (std::int64_t j = 0; j < first; ++j) { multiply(sums + j * z.features, by); }
            this->fade_from(x + first * z.features, 1, first, rows, s.faded);
            matrix_add<Isa, FloatProduct, L, Walk::along_column>(dscores + first * z.chunk, z.chunk, s.faded,
                                                                 z.features, sums, z.features, first,
                                                                 z.feature_vectors(), Old::keep, nullptr, Depth{rows});
        }
        K::add_row(dk, sums, 1, count * z.features);
    }

    /// slope_i += factor x_i dx_i, summed over the row where a token has one decay.
    void add_slopes(const float* x, const float* dx, float factor) const {
        if (!call.each_row) {
            for (std::int64_t i = 0; i < count; ++i) {
                s.slope[i] += factor * K::dot(x + i * z.features, dx + i * z.features, z.features);
            }
            return;
        }
        for (std::int64_t n = 0; n < count * z.features; n += L) {
            S::store(s.slope + n, S::load(s.slope + n) + S::all(factor) * S::load(x + n) * S::load(dx + n));
        }
    }

    // ---- A chunk ---------------------------------------------------------------------------------------------------

    /// du, dk and D from the state behind the chunk.
    void from_state(float* dstate) const {
        matrix_set<Isa, FloatProduct, L, Walk::along_row>(s.left, z.features, dstate, z.values, call.feature_size, s.du,
                                                          z.values, count, z.value_vectors());
        Base::transpose(dstate, z.values, call.feature_size, call.value_size, s.dstate_columns, z.features);
        matrix_set<Isa, FloatProduct, L, Walk::along_row>(s.u, z.values, s.dstate_columns, z.features, call.value_size,
                                                          s.dk, z.features, count, z.feature_vectors());
        state_slopes(dstate);
        // dk is that of R_mj k_j as yet.
        if (call.each_row) {
            for (std::int64_t c = 0; c < z.features; c += L) {
                V product = S::all(1.0F);
                for (std::int64_t j = count - 1; j >= 0; --j) {
                    S::store(s.dk + j * z.features + c, product * S::load(s.dk + j * z.features + c));
                    product *= S::load(s.a + j * z.features + c);
                }
            }
        } else {
            K::scale_rows(s.dk, s.between + (count - 1) * z.chunk, count, z.features, s.dk);
        }
        for (std::int64_t f = 0; f < call.feature_size; ++f) {
            K::scale_rows(dstate + f * z.values, s.total + f, 1, z.values, dstate + f * z.values);
        }
    }
    /// What every decay of the chunk gets by way of the state behind it, D . S', begins the last token's sum.
    void state_slopes(const float* dstate) const {
        K::clear(s.slope, call.each_row ? count * z.features : z.chunk);
        float* last = s.slope + (call.each_row ? (count - 1) * z.features : count - 1);
        float sum = 0;
        for (std::int64_t f = 0; f < call.feature_size; ++f) {
            float through = s.total[f] * K::dot(dstate + f * z.values, s.state + f * z.values, z.values);
            if (call.each_row) {
                last[f] = through;
            } else {
                sum += through;
            }
        }
        if (!call.each_row) {
            for (std::int64_t j = 0; j < count; ++j) {
                sum += K::dot(s.left + j * z.features, s.dk + j * z.features, z.features);
            }
            *last = sum;
            return;
        }
        for (std::int64_t j = 0; j < count; ++j) {
            for (std::int64_t c = 0; c < z.features; c += L) {
                S::store(last + c,
                         S::load(last + c) + S::load(s.left + j * z.features + c) * S::load(s.dk + j * z.features + c));
            }
        }
    }

    /// D += sum_i faded_i d_i^T
    void add_to_state(const float* d, float* dstate) const {
        matrix_add<Isa, FloatProduct, L, Walk::along_column>(s.faded, z.features, d, z.values, dstate, z.values,
                                                             call.feature_size, z.value_vectors(), Old::keep, nullptr,
                                                             Depth{count});
    }
    /// dx_i = factor R_i (S d_i)
    void read_backward(const float* d, float factor, float* dx) const {
        matrix_set<Isa, FloatProduct, L, Walk::along_row>(d, z.values, s.state_columns, z.features, call.value_size, dx,
                                                          z.features, count, z.feature_vectors());
        this->fade(dx, factor, dx);
    }

    void reader(std::int64_t h, std::int64_t begin, float* dstate) const {
        K::map_rows(call, call.q, b, h, begin, count, call.scale, s.x, s.rows);
        K::load_rows(call.dout, b, h, begin, count, call.value_size, s.dout, z.values);
        this->products(s.x, false, 1, s.scores);
        K::add_upper(s.scores, z.chunk, s.dout, z.values, count, nullptr, K::finite(s.dout, count * z.values), s.du);
        K::lower_products(s.dout, z.values, s.u_columns, z.chunk, call.value_size, count, s.dscores);
        this->mask(s.dscores, nullptr, false, 1);
        read_backward(s.dout, 1, s.dx);
        products_backward(s.x, s.dscores, s.dx, s.dk);
        this->fade(s.x, 1, s.faded);
        add_to_state(s.dout, dstate);
        add_slopes(s.x, s.dx, 1);
        for (std::int64_t i = 0; i < count; ++i) {
            float* row = s.dx + i * z.features;
            K::scale_rows(row, &call.scale, 1, z.features, row);
            K::store_feature_gradient(call, call.q, call.dq, b, h, begin + i, row, s.rows);
        }
    }

    /// Backward through the triangular system: du becomes de, and dbeta.
    void solve_backward() const {
        for (std::int64_t first = (count - 1) / gated_block * gated_block; first >= 0; first -= gated_block) {
            const std::int64_t rows = smaller(gated_block, count - first);
            for (std::int64_t j = first + rows - 1; j >= first; --j) {
                float* row = s.du + j * z.values;
                for (std::int64_t i = j + 1; i < first + rows; ++i) {
                    K::add_row(row, s.du + i * z.values, s.minus_p[i * z.chunk + j], z.values);
                }
                s.dbeta[j] = K::dot(row, s.e + j * z.values, z.values);
                K::scale_rows(row, s.beta + j, 1, z.values, row);
            }
            matrix_add<Isa, FloatProduct, L, Walk::along_column>(
                s.minus_p + first * z.chunk, z.chunk, s.du + first * z.values, z.values, s.du, z.values, first,
                z.value_vectors(), Old::keep, nullptr, Depth{rows});
        }
    }
    /// The share of keys as what reads, in P and in the state.
    void delta_backward(float* dstate) const {
        solve_backward();
        K::lower_products(s.du, z.values, s.u_columns, z.chunk, call.value_size, count, s.dscores);
        this->mask(s.dscores, nullptr, true, -1);
        read_backward(s.du, -1, s.dx);
        products_backward(s.k, s.dscores, s.dx, s.dk);
        this->fade(s.k, -1, s.faded);
        add_to_state(s.du, dstate);
        add_slopes(s.k, s.dx, 1);
    }

    /// Sums of slopes from the last token on are the gradients of the logarithms.
    void put_decays(std::int64_t n, std::int64_t begin) const {
        if (call.dlog_decay.data == nullptr) { return; }
        if (!call.each_row) {
            for (std::int64_t i = count - 2; i >= 0; --i) { s.slope[i] += s.slope[i + 1]; }
            put_gates(call.dlog_decay, b, n, begin, count, s.slope);
            return;
        }
        for (std::int64_t i = count - 1; i >= 0; --i) {
            float* row = s.slope + i * z.features;
            if (i + 1 < count) { K::add_row(row, row + z.features, 1, z.features); }
            store_row<Isa>(call.dlog_decay.dtype, address(call.dlog_decay, b, n, begin + i), call.dlog_decay.column,
                           call.feature_size, row, 1);
        }
    }

    void chunk_of_state(std::int64_t sharer, std::int64_t chunk) {
        const std::int64_t n = g * call.sharers + sharer;
        const std::int64_t begin = chunk * call.chunk;
        float* dstate = s.dstates + sharer * state_floats();
        load(n, chunk);
        s.state = saved(sharer, chunk);
        if (call.delta) { this->solve(s.state); }
        Base::transpose(s.u, z.values, count, call.value_size, s.u_columns, z.chunk);
        Base::transpose(s.state, z.values, call.feature_size, call.value_size, s.state_columns, z.features);
        from_state(dstate);
        for (std::int64_t h = n * call.readers; h < (n + 1) * call.readers; ++h) { reader(h, begin, dstate); }
        if (call.delta) { delta_backward(dstate); }
        add_slopes(s.k, s.dk, -1);
        put_decays(n, begin);
        if (call.dbeta.data != nullptr) { put_gates(call.dbeta, b, n, begin, count, s.dbeta); }
        if (call.delta) { K::add_row(s.dk, s.dx, 1, count * z.features); }
        add_or_set(s.dk, count * z.features, sharer, s.dk_sum);
        add_or_set(s.du, count * z.values, sharer, s.dv_sum);
    }
    void add_or_set(const float* from, std::int64_t floats, std::int64_t sharer, float* to) const {
        if (sharer == 0) {
            Base::copy(from, floats, to);
        } else {
            K::add_row(to, from, 1, floats);
        }
    }

    void run() {
        for (std::int64_t sharer = 0; sharer < call.sharers; ++sharer) {
            go_forth(sharer);
            load_state(call.dfinal_s, g * call.sharers + sharer, s.dstates + sharer * state_floats());
        }
        for (std::int64_t chunk = chunks() - 1; chunk >= 0; --chunk) {
            for (std::int64_t sharer = 0; sharer < call.sharers; ++sharer) { chunk_of_state(sharer, chunk); }
            for (std::int64_t j = 0; j < count; ++j) {
                const std::int64_t t = chunk * call.chunk + j;
                store_row<Isa>(call.dv.dtype, address(call.dv, b, g, t), call.dv.column, call.value_size,
                               s.dv_sum + j * z.values, 1);
                K::store_feature_gradient(call, call.k, call.dk, b, g, t, s.dk_sum + j * z.features, s.rows);
            }
        }
        finish();
    }
    /// Padding, and the gradients of the initial states.
    void finish() const {
        clear_rows(call.dk, call.head_size, b, g, tokens(), call.keys);
        clear_rows(call.dv, call.value_size, b, g, tokens(), call.keys);
        for (std::int64_t sharer = 0; sharer < call.sharers; ++sharer) {
            const std::int64_t n = g * call.sharers + sharer;
            for (std::int64_t h = n * call.readers; h < (n + 1) * call.readers; ++h) {
                clear_rows(call.dq, call.head_size, b, h, tokens(), call.queries);
            }
            const std::int64_t rest = call.keys - tokens();
            if (call.dbeta.data != nullptr) { put_gates(call.dbeta, b, n, tokens(), rest, nullptr); }
            if (call.dlog_decay.data != nullptr && call.each_row) {
                clear_rows(call.dlog_decay, call.feature_size, b, n, tokens(), call.keys);
            } else if (call.dlog_decay.data != nullptr) {
                put_gates(call.dlog_decay, b, n, tokens(), rest, nullptr);
            }
            K::store_state(call, call.dinitial_s, {}, b, n, {s.dstates + sharer * state_floats(), nullptr});
        }
    }
};

}  // namespace heed::cpu
