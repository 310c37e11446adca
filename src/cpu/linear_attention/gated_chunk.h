#pragma once
#include "cpu/linear_attention/gated_scratch.h"

/// One chunk of gated linear attention as products of tiles. R_ij is the product of the decays behind token j up to
/// token i (a number, or one for each row of the state), R_i that from the start of the chunk; S is the state before
/// it. Decays are multiplied up, never divided by: they may be 0.
///
///     P_ij = k_i . R_ij k_j, j < i        e_i = v_i - (R_i k_i) S - sum_j P_ij u_j        u_i = beta_i e_i
///     A_ij = q_i . R_ij k_j, j <= i       out_i = (R_i q_i) S + sum_j A_ij u_j
///     S' = R_m S + sum_j (R_mj k_j) u_j^T                                          without the delta rule u is v

namespace heed::cpu {

template <class Isa>
struct GatedChunk {
    static constexpr int L = Isa::lanes;
    using K = Linear<Isa>;
    using S = Simd<Isa, L>;
    using V = F<L>;
    using Product = FloatProduct;

    /// All of the depth of a product: one type, so that one product is compiled.
    struct Depth {
        std::int64_t count;
        HEED_INLINE Range operator()(std::int64_t, std::int64_t) const { return {0, count}; }
    };

    const GatedCall& call;
    GatedScratch& s;
    LinearSizes<Isa> z;
    std::int64_t count = 0;

    GatedChunk(const GatedCall& of, GatedScratch& scratch) : call(of), s(scratch), z(of) {}

    // ---- Decays ----------------------------------------------------------------------------------------------------

    void load(std::int64_t b, std::int64_t n, std::int64_t begin, std::int64_t tokens) {
        count = tokens;
        const std::int64_t g = n / call.sharers;
        K::map_rows(call, call.k, b, g, begin, count, 1, s.k, s.rows);
        K::load_rows(call.v, b, g, begin, count, call.value_size, s.v, z.values);
        fill_gates(call, b, n, begin, count, s.a, s.beta);
        if (call.each_row) {
            load_row_decays(b, n, begin);
        } else {
            multiply_decays();
        }
        if (!call.each_row) { transpose(s.k, z.features, count, call.feature_size, s.transposed, z.chunk); }
        fade_to_end();
    }

    void load_row_decays(std::int64_t b, std::int64_t n, std::int64_t begin) const {
        for (std::int64_t i = 0; i < count; ++i) {
            float* row = s.a + i * z.features;
            K::clear(row + z.features - L, L);
            load_row<Isa>(call.log_decay.dtype, address(call.log_decay, b, n, begin + i), call.log_decay.column,
                          call.feature_size, row);
            for (std::int64_t c = 0; c < z.features; c += L) {
                // exp(-200) is 0 in float32; minus infinity is no number to round.
                const V x = S::max(S::all(-200.0F), S::load(row + c));
                S::store(row + c, S::exp2(x * S::all(std::numbers::log2e_v<float>)));
            }
        }
    }

    /// One decay a token: row i of `between` is row i - 1, faded.
    void multiply_decays() const {
        float product = 1;
        for (std::int64_t i = 0; i < count; ++i) {
            product *= s.a[i];
            s.from[i] = product;
            float* row = s.between + i * z.chunk;
            K::clear(row, z.chunk);
            const V decay = S::all(s.a[i]);
            for (std::int64_t j = 0; j < i; j += L) { S::store(row + j, decay * S::load(row - z.chunk + j)); }
            row[i] = 1;
        }
    }

    /// left = R_mj k_j, total = R_m
    void fade_to_end() const {
        if (!call.each_row) {
            K::scale_rows(s.k, s.between + (count - 1) * z.chunk, count, z.features, s.left);
            for (std::int64_t c = 0; c < z.features; c += L) { S::store(s.total + c, S::all(s.from[count - 1])); }
            return;
        }
        for (std::int64_t c = 0; c < z.features; c += L) {
            V product = S::all(1.0F);
            for (std::int64_t j = count - 1; j >= 0; --j) {
                S::store(s.left + j * z.features + c, product * S::load(s.k + j * z.features + c));
                product *= S::load(s.a + j * z.features + c);
            }
            S::store(s.total + c, product);
        }
    }

    /// to_i = factor R_i x_i, counted from token `first`; in place or not
    void fade_from(const float* x, float factor, std::int64_t first, std::int64_t rows, float* to) const {
        for (std::int64_t c = 0; c < z.features; c += L) {
            V product = S::all(factor);
            for (std::int64_t i = 0; i < rows; ++i) {
                product *= S::load(s.a + (first + i) * z.features + c);
                S::store(to + i * z.features + c, product * S::load(x + i * z.features + c));
            }
        }
    }
    /// to_i = factor R_i x_i
    void fade(const float* x, float factor, float* to) const {
        if (call.each_row) { return fade_from(x, factor, 0, count, to); }
        for (std::int64_t i = 0; i < count; ++i) {
            const float by = factor * s.from[i];
            K::scale_rows(x + i * z.features, &by, 1, z.features, to + i * z.features);
        }
    }

    static HEED_INLINE void transpose(const float* from, std::int64_t from_stride, std::int64_t rows,
                                      std::int64_t columns, float* to, std::int64_t stride) {
        transpose_rows<Isa, L>([&](std::int64_t r) { return from + r * from_stride; }, rows, columns, to, stride);
    }

    // ---- Products inside the chunk ---------------------------------------------------------------------------------

    /// scores_ij = by * scores_ij for j <= i (or j < i), 0 beyond.
    void mask(float* scores, const float* by, bool strict, float factor) const {
        I<L> lane;
        for (int n = 0; n < L; ++n) { lane[n] = n; }
        for (std::int64_t i = 0; i < count; ++i) {
            float* row = scores + i * z.chunk;
            const std::int64_t end = strict ? i : i + 1;
            for (std::int64_t j = 0; j < z.chunk; j += L) {
                if (j >= end) {
                    S::store(row + j, V{});
                    continue;
                }
                V x = S::all(factor) * S::load(row + j);
                if (by != nullptr) { x *= S::load(by + i * z.chunk + j); }
                const I<L> place = lane + S::all(static_cast<std::int32_t>(j));
                S::store(row + j, place < S::all(static_cast<std::int32_t>(end)) ? x : V{});
            }
        }
    }

    /// scores_ij = factor x_i . R_ij k_j for j <= i (or j < i), 0 beyond
    void products(const float* x, bool strict, float factor, float* scores) const {
        if (!call.each_row) {
            K::lower_products(x, z.features, s.transposed, z.chunk, call.feature_size, count, scores);
            mask(scores, s.between, strict, factor);
            return;
        }
        for (std::int64_t first = 0; first < count; first += gated_block) {
            const std::int64_t rows = smaller(gated_block, count - first);
            // Keys of earlier blocks lie in `transposed`, faded up to this one.
            if (first > 0) {
                fade_from(x + first * z.features, 1, first, rows, s.faded);
                matrix_set<Isa, Product, L, Walk::along_row>(s.faded, z.features, s.transposed, z.chunk,
                                                             call.feature_size, scores + first * z.chunk, z.chunk, rows,
                                                             static_cast<int>(first / L));
            }
            for (std::int64_t i = 0; i < rows; ++i) {
                fade_block(first, i);
                const float* row = x + (first + i) * z.features;
                for (std::int64_t j = 0; j <= i; ++j) {
                    scores[(first + i) * z.chunk + first + j] = K::dot(row, s.block + j * z.features, z.features);
                }
            }
            if (first + rows < count) { append_block(first, rows); }
        }
        mask(scores, nullptr, strict, factor);
    }
    /// Keys of the block up to token first + i, faded by that token's decay.
    HEED_INLINE void fade_block(std::int64_t first, std::int64_t i) const {
        const float* decay = s.a + (first + i) * z.features;
        for (std::int64_t j = 0; j < i; ++j) {
            float* key = s.block + j * z.features;
            for (std::int64_t c = 0; c < z.features; c += L) {
                S::store(key + c, S::load(key + c) * S::load(decay + c));
            }
        }
        copy(s.k + (first + i) * z.features, z.features, s.block + i * z.features);
    }
    static HEED_INLINE void copy(const float* from, std::int64_t floats, float* to) {
        __builtin_memcpy(to, from, static_cast<std::size_t>(floats) * 4);
    }
    /// Product of the decays of the block, into the caller's row.
    HEED_INLINE void block_total(std::int64_t first, std::int64_t rows, float* to) const {
        for (std::int64_t c = 0; c < z.features; c += L) {
            V product = S::all(1.0F);
            for (std::int64_t i = 0; i < rows; ++i) { product *= S::load(s.a + (first + i) * z.features + c); }
            S::store(to + c, product);
        }
    }
    /// `transposed` moves on past the block.
    void append_block(std::int64_t first, std::int64_t rows) const {
        float* by = s.rows.staging;
        block_total(first, rows, by);
        for (std::int64_t f = 0; f < call.feature_size; ++f) {
            float* row = s.transposed + f * z.chunk;
            const V factor = S::all(by[f]);
            for (std::int64_t j = 0; j < first; j += L) { S::store(row + j, factor * S::load(row + j)); }
        }
        transpose(s.block, z.features, rows, call.feature_size, s.transposed + first, z.chunk);
    }

    // ---- The delta rule --------------------------------------------------------------------------------------------

    /// e and u of the chunk.
    void solve(const float* state) const {
        products(s.k, true, -1, s.minus_p);
        fade(s.k, 1, s.faded);
        matrix_set<Isa, Product, L, Walk::along_row>(s.faded, z.features, state, z.values, call.feature_size, s.sums,
                                                     z.values, count, z.value_vectors());
        for (std::int64_t n = 0; n < count * z.values; n += L) {
            S::store(s.e + n, S::load(s.v + n) - S::load(s.sums + n));
        }
        for (std::int64_t first = 0; first < count; first += gated_block) {
            const std::int64_t rows = smaller(gated_block, count - first);
            if (first > 0) {
                matrix_add<Isa, Product, L, Walk::along_row>(s.minus_p + first * z.chunk, z.chunk, s.u, z.values,
                                                             s.e + first * z.values, z.values, rows, z.value_vectors(),
                                                             Old::keep, nullptr, Depth{first});
            }
            for (int v = 0; v < z.value_vectors(); v += 4) {
                with_constant<4>(smaller(4, z.value_vectors() - v),
                                 [&]<int NV>() { substitute<NV>(first, rows, v * L); });
            }
        }
    }
    /// NV vectors of the rows of a block, from its first on.
    template <int NV>
    HEED_INLINE void substitute(std::int64_t first, std::int64_t rows, std::int64_t column) const {
        for (std::int64_t i = first; i < first + rows; ++i) {
            V sum[NV];
            HEED_UNROLL
            for (int n = 0; n < NV; ++n) { sum[n] = S::load(s.e + i * z.values + column + n * L); }
            for (std::int64_t j = first; j < i; ++j) {
                const V p = S::all(s.minus_p[i * z.chunk + j]);
                HEED_UNROLL
                for (int n = 0; n < NV; ++n) { sum[n] += p * S::load(s.u + j * z.values + column + n * L); }
            }
            const V beta = S::all(s.beta[i]);
            HEED_UNROLL
            for (int n = 0; n < NV; ++n) {
                S::store(s.e + i * z.values + column + n * L, sum[n]);
                S::store(s.u + i * z.values + column + n * L, beta * sum[n]);
            }
        }
    }

    /// state = R_m state + sum_j (R_mj k_j) u_j^T
    void advance(float* state) const {
        matrix_add<Isa, Product, L, Walk::along_column>(s.left, z.features, s.u, z.values, state, z.values,
                                                        call.feature_size, z.value_vectors(), Old::scale, s.total,
                                                        Depth{count});
    }
};

}  // namespace heed::cpu
