#pragma once
#include "cpu/linear_attention/scratch.h"
#include "cpu/matmul/gemm.h"

#include <numbers>

/// One chunk of linear attention as products of tiles. Rows i and j count from the start of a chunk of m tokens; S is
/// the state before it.
///
///     A_ij = decay^(i-j) phi(q_i).phi(k_j), j <= i
///     numerator_i = decay^(i+1) phi(q_i) S + sum_j A_ij v_j
///     S' = decay^m S + sum_j decay^(m-1-j) phi(k_j) v_j^T

namespace heed::cpu {

/// Of the depth of a product.
struct Range {
    std::int64_t begin, end;
};

HEED_INLINE std::int64_t bytes_of(DType dtype) { return dtype == DType::f64 ? 8 : dtype == DType::f32 ? 4 : 2; }
/// Asks for `bytes` of a row of the next chunk, for the second-level cache: rows stream from far while products run
/// from near, and the first level is full of those.
HEED_INLINE void fetch_ahead(const char* row, std::int64_t bytes) {
    for (std::int64_t n = 0; n < bytes; n += 64) { __builtin_prefetch(row + n, 0, 2); }
}
/// The same of a row that will be written.
HEED_INLINE void fetch_ahead_to_write(const char* row, std::int64_t bytes) {
    for (std::int64_t n = 0; n < bytes; n += 64) { __builtin_prefetch(row + n, 1, 2); }
}
HEED_INLINE char* address(const Tensor4& t, std::int64_t b, std::int64_t h, std::int64_t row) {
    return t.data + (b * t.b + h * t.h + row * t.row) * bytes_of(t.dtype);
}

/// Is the denominator, epsilon included, one to divide by?
HEED_INLINE bool divides(const LinearCall& call, float denominator) {
    return denominator != 0 && !(call.least > 0 && denominator < call.least);
}

template <class Isa>
struct Linear {
    static constexpr int L = Isa::lanes;
    using S = Simd<Isa, L>;
    using V = F<L>;
    using Product = FloatProduct;

    static HEED_INLINE void clear(float* to, std::int64_t n) {
        __builtin_memset(to, 0, static_cast<std::size_t>(n) * 4);
    }

    static HEED_INLINE V phi(FeatureMap feature, V x) {
        switch (feature) {
            case FeatureMap::elu_plus_one:
                return x > V{} ? x + S::all(1.0F) : S::exp2(x * S::all(std::numbers::log2e_v<float>));
            case FeatureMap::relu: return x <= V{} ? V{} : x;  // NaN stays
            default: return x;
        }
    }
    static HEED_INLINE V phi_backward(FeatureMap feature, V x, V dy) {
        switch (feature) {
            case FeatureMap::elu_plus_one: return x > V{} ? dy : dy * S::exp2(x * S::all(std::numbers::log2e_v<float>));
            case FeatureMap::relu: return x <= V{} ? V{} : dy;
            default: return dy;
        }
    }

    /// Can rows be read as vectors where they lie?
    static HEED_INLINE bool whole_vectors(const Tensor4& from, std::int64_t columns) {
        return from.dtype == DType::f32 && from.column == 1 && columns % L == 0;
    }

    /// to[r] = factor phi(row begin + r), padded with zeros.
    static void map_rows(const LinearCall& call, const Tensor4& from, std::int64_t b, std::int64_t h,
                         std::int64_t begin, std::int64_t count, float factor, float* to,
                         const LinearScratch& scratch) {
        const LinearSizes<Isa> z(call);
        const V scale = S::all(factor);
        for (std::int64_t r = 0; r < count; ++r) {
            float* row = to + r * z.features;
            const char* source = address(from, b, h, begin + r);
            fetch_ahead(address(from, b, h, begin + r + call.chunk), call.head_size * bytes_of(from.dtype));
            if (call.feature == FeatureMap::function) {
                load_row<Isa>(from.dtype, source, from.column, call.head_size, scratch.staging);
                map_by_function(call, scratch.staging, row, scratch.space);
                for (std::int64_t c = 0; c < call.feature_size; ++c) { row[c] *= factor; }
            } else if (whole_vectors(from, call.head_size)) {
                for (std::int64_t c = 0; c < z.features; c += L) {
                    S::store(row + c, scale * phi(call.feature, S::load(reinterpret_cast<const float*>(source) + c)));
                }
            } else {
                load_row<Isa>(from.dtype, source, from.column, call.head_size, row);
                for (std::int64_t c = call.feature_size; c < z.features; ++c) { row[c] = 0; }
                for (std::int64_t c = 0; c < z.features; c += L) {
                    S::store(row + c, scale * phi(call.feature, S::load(row + c)));
                }
            }
            for (std::int64_t c = call.feature_size; c < z.features; ++c) { row[c] = 0; }
        }
    }

    /// Row `row` of `to` = phi'(x) dphi, x the same row of `from`. dphi is overwritten.
    static void store_feature_gradient(const LinearCall& call, const Tensor4& from, const Tensor4& to, std::int64_t b,
                                       std::int64_t h, std::int64_t row, float* dphi, const LinearScratch& scratch) {
        const LinearSizes<Isa> z(call);
        float* x = scratch.staging;
        load_row<Isa>(from.dtype, address(from, b, h, row), from.column, call.head_size, x);
        if (call.feature == FeatureMap::function) {
            map_backward_by_function(call, x, dphi, x, scratch.space);
            store_row<Isa>(to.dtype, address(to, b, h, row), to.column, call.head_size, x, 1);
            return;
        }
        for (std::int64_t c = call.head_size; c < z.features; ++c) { x[c] = 0; }
        for (std::int64_t c = 0; c < z.features; c += L) {
            S::store(dphi + c, phi_backward(call.feature, S::load(x + c), S::load(dphi + c)));
        }
        store_row<Isa>(to.dtype, address(to, b, h, row), to.column, call.head_size, dphi, 1);
    }

    static void load_rows(const Tensor4& from, std::int64_t b, std::int64_t h, std::int64_t begin, std::int64_t count,
                          std::int64_t columns, float* to, std::int64_t stride) {
        for (std::int64_t r = 0; r < count; ++r) {
            float* row = to + r * stride;
            fetch_ahead(address(from, b, h, begin + r + count), columns * bytes_of(from.dtype));
            const char* source = address(from, b, h, begin + r);
            if (whole_vectors(from, columns)) {
                for (std::int64_t c = 0; c < columns; c += L) {
                    S::store(row + c, S::load(reinterpret_cast<const float*>(source) + c));
                }
                continue;
            }
            load_row<Isa>(from.dtype, source, from.column, columns, row);
            for (std::int64_t c = columns; c < stride; ++c) { row[c] = 0; }
        }
    }

    /// 0 * NaN is NaN: where a product skips by multiplying with 0, it needs finite numbers or care.
    static bool finite(const float* from, std::int64_t count) {
        V sum = {};
        for (std::int64_t n = 0; n < count; n += L) { sum += S::load(from + n) * S::all(0.0F); }
        return S::every(sum == V{});
    }

    static void pack_keys(const LinearCall& call, std::int64_t b, std::int64_t g, std::int64_t begin,
                          std::int64_t count, bool backward, LinearScratch& scratch) {
        const LinearSizes<Isa> z(call);
        KeyChunk& keys = scratch.keys;
        keys.count = count;
        map_rows(call, call.k, b, g, begin, count, 1, keys.phi, scratch);
        load_rows(call.v, b, g, begin, count, call.value_size, keys.v, z.values);
        if (call.causal) {
            transpose_rows<Isa, L>([&](std::int64_t r) { return keys.phi + r * z.features; }, count, call.feature_size,
                                   keys.transposed, z.chunk);
            keys.finite_v = finite(keys.v, count * z.values);
            if (backward) {
                keys.finite_phi = finite(keys.phi, count * z.features);
                transpose_rows<Isa, L>([&](std::int64_t r) { return keys.v + r * z.values; }, count, call.value_size,
                                       keys.v_transposed, z.chunk);
            }
        }
    }

    /// to[r] = factor[r] from[r]
    static void scale_rows(const float* from, const float* factor, std::int64_t count, std::int64_t stride, float* to) {
        for (std::int64_t r = 0; r < count; ++r) {
            const V f = S::all(factor[r]);
            for (std::int64_t c = 0; c < stride; c += L) {
                S::store(to + r * stride + c, f * S::load(from + r * stride + c));
            }
        }
    }

    /// What the chunk adds to the state: S' = decay^m S + change.
    static void key_change(const LinearCall& call, LinearScratch& scratch, StateSpace<Isa> change) {
        const LinearSizes<Isa> z(call);
        KeyChunk& keys = scratch.keys;
        keys.left = keys.phi;
        if (call.decays) {
            keys.left = scratch.left_space;
            scale_rows(keys.phi, scratch.falling + (call.chunk - keys.count), keys.count, z.features, keys.left);
        }
        matrix_set<Isa, Product, L, Walk::along_column>(keys.left, z.features, keys.v, z.values, keys.count, change.s,
                                                        z.values, call.feature_size, z.value_vectors());
        clear(change.z, z.features);
        if (!call.normalise) { return; }
        for (std::int64_t j = 0; j < keys.count; ++j) { add_row(change.z, keys.left + j * z.features, 1, z.features); }
    }

    /// to += factor from
    static HEED_INLINE void add_row(float* to, const float* from, float factor, std::int64_t count) {
        const V f = S::all(factor);
        for (std::int64_t c = 0; c < count; c += L) { S::store(to + c, S::load(to + c) + f * S::load(from + c)); }
    }
    /// state = factor state + change
    static void advance(const LinearCall& call, StateSpace<Isa> state, float factor, const float* change) {
        const V f = S::all(factor);
        const std::int64_t count = StateSpace<Isa>::floats(call);
        for (std::int64_t n = 0; n < count; n += L) {
            S::store(state.s + n, f * S::load(state.s + n) + S::load(change + n));
        }
    }
    /// change becomes the state before it, and the state moves on.
    static void exchange(const LinearCall& call, StateSpace<Isa> state, float factor, float* change) {
        const V f = S::all(factor);
        const std::int64_t count = StateSpace<Isa>::floats(call);
        for (std::int64_t n = 0; n < count; n += L) {
            const V before = S::load(state.s + n);
            S::store(state.s + n, f * before + S::load(change + n));
            S::store(change + n, before);
        }
    }

    /// Sum of the lanes in the registers: by way of memory it costs five times as much, two times a row.
    static HEED_INLINE float sum_lanes(V v) { return sum_lanes_by<L / 2>(v)[0]; }
    template <int Width>
    static HEED_INLINE V sum_lanes_by(V v) {
        v += swap_lanes<Width>(v, std::make_index_sequence<L>{});
        if constexpr (Width > 1) { return sum_lanes_by<Width / 2>(v); }
        return v;
    }
    template <int Width, std::size_t... Lane>
    static HEED_INLINE V swap_lanes(V v, std::index_sequence<Lane...>) {
#if defined(__clang__)
        return __builtin_shufflevector(v, v, (static_cast<int>(Lane) ^ Width)...);
#else
        return __builtin_shuffle(v, I<L>{(static_cast<std::int32_t>(Lane) ^ Width)...});
#endif
    }

    static HEED_INLINE float dot(const float* a, const float* b, std::int64_t count) {
        V sum = {};
        for (std::int64_t c = 0; c < count; c += L) { sum += S::load(a + c) * S::load(b + c); }
        return sum_lanes(sum);
    }

    /// scores[i][j] = a_i . b_j for j <= i; what lies above the diagonal is not all computed.
    static void lower_products(const float* a, std::int64_t a_stride, const float* b_transposed, std::int64_t stride,
                               std::int64_t depth, std::int64_t count, float* scores) {
        constexpr std::int64_t rows = 24;  // a multiple of every register tile's height
        for (std::int64_t i = 0; i < count; i += rows) {
            const std::int64_t block = smaller(rows, count - i);
            const int vectors = static_cast<int>((i + block + L - 1) / L);
            matrix_set<Isa, Product, L, Walk::along_row>(a + i * a_stride, a_stride, b_transposed, stride, depth,
                                                         scores + i * stride, stride, block, vectors);
        }
    }

    /// scores[i][j] = decay^(i-j) (scores[i][j] + add[i]) for j <= i and 0 up to the vectors computed; add may be null.
    /// Sums of the rows to row_sum where given.
    static void finish_lower(const LinearCall& call, const LinearScratch& scratch, std::int64_t stride,
                             std::int64_t count, const float* add, float* row_sum) {
        I<L> lane;
        for (int n = 0; n < L; ++n) { lane[n] = n; }
        for (std::int64_t i = 0; i < count; ++i) {
            float* row = scratch.scores + i * stride;
            const float* falling = scratch.falling + (call.chunk - 1 - i);
            const V more = S::all(add == nullptr ? 0.0F : add[i]);
            V sum = {};
            const std::int64_t written = smaller(round_up(smaller(i / 24 * 24 + 24, count), L), stride);
            for (std::int64_t j = 0; j < written; j += L) {
                V x = S::load(row + j);
                if (add != nullptr) { x += more; }
                if (call.decays) { x *= S::load(falling + smaller(j, i + 1)); }
                if (j + L > i + 1) {
                    x = lane + S::all(static_cast<std::int32_t>(j)) <= S::all(static_cast<std::int32_t>(i)) ? x : V{};
                }
                S::store(row + j, x);
                sum += x;
            }
            if (row_sum != nullptr) { row_sum[i] = sum_lanes(sum); }
        }
    }

    /// sum over j < i of slope_(i-j) plain_ij (scores_ij + add_i): what the powers of the decay inside the chunk pass
    /// on to it. add may be null.
    static double inner_slopes(const LinearCall& call, const LinearScratch& scratch, std::int64_t stride,
                               std::int64_t count, const float* add) {
        I<L> lane;
        for (int n = 0; n < L; ++n) { lane[n] = n; }
        double total = 0;
        for (std::int64_t i = 1; i < count; ++i) {
            const float* falling = scratch.slope_falling + (call.chunk - 1 - i);
            const V more = S::all(add == nullptr ? 0.0F : add[i]);
            V sum = {};
            for (std::int64_t j = 0; j < i; j += L) {
                const V x = S::load(falling + j) * S::load(scratch.plain_scores + i * stride + j) *
                            (S::load(scratch.scores + i * stride + j) + more);
                sum += lane + S::all(static_cast<std::int32_t>(j)) < S::all(static_cast<std::int32_t>(i)) ? x : V{};
            }
            total += static_cast<double>(sum_lanes(sum));
        }
        return total;
    }

    /// to[i] = factor[i] to[i] + sum_{j <= i} scores[i][j] x[j]; factor may be null.
    static void add_lower(const float* scores, std::int64_t scores_stride, const float* x, std::int64_t stride,
                          std::int64_t count, const float* factor, bool finite_x, float* to) {
        if (!finite_x) { return add_carefully<false>(scores, scores_stride, x, stride, count, factor, to); }
        matrix_add<Isa, Product, L, Walk::along_row>(
            scores, scores_stride, x, stride, to, stride, count, static_cast<int>(stride / L),
            factor == nullptr ? Old::keep : Old::scale, factor, [](std::int64_t m, std::int64_t rows) {
                return Range{0, m + rows};
            });
    }
    /// to[j] = factor[j] to[j] + sum_{i >= j} scores[i][j] x[i]
    static void add_upper(const float* scores, std::int64_t scores_stride, const float* x, std::int64_t stride,
                          std::int64_t count, const float* factor, bool finite_x, float* to) {
        if (!finite_x) { return add_carefully<true>(scores, scores_stride, x, stride, count, factor, to); }
        matrix_add<Isa, Product, L, Walk::along_column>(
            scores, scores_stride, x, stride, to, stride, count, static_cast<int>(stride / L),
            factor == nullptr ? Old::keep : Old::scale, factor, [count](std::int64_t m, std::int64_t) {
                return Range{m, count};
            });
    }
    /// The same without touching what a row may not see.
    template <bool Upper>
    static void add_carefully(const float* scores, std::int64_t scores_stride, const float* x, std::int64_t stride,
                              std::int64_t count, const float* factor, float* to) {
        for (std::int64_t r = 0; r < count; ++r) {
            float* row = to + r * stride;
            if (factor != nullptr) { scale_rows(row, factor + r, 1, stride, row); }
            for (std::int64_t n = Upper ? r : 0; n < (Upper ? count : r + 1); ++n) {
                const float w = Upper ? scores[n * scores_stride + r] : scores[r * scores_stride + n];
                add_row(row, x + n * stride, w, stride);
            }
        }
    }

    static void load_state(const LinearCall& call, const Tensor4& s, const Tensor4& z, std::int64_t b, std::int64_t n,
                           StateSpace<Isa> to) {
        const LinearSizes<Isa> size(call);
        clear(to.s, StateSpace<Isa>::floats(call));
        if (s.data != nullptr) { load_rows(s, b, n, 0, call.feature_size, call.value_size, to.s, size.values); }
        if (z.data != nullptr) { load_row<Isa>(z.dtype, address(z, b, n, 0), z.row, call.feature_size, to.z); }
    }
    static void store_state(const LinearCall& call, const Tensor4& s, const Tensor4& z, std::int64_t b, std::int64_t n,
                            StateSpace<Isa> from) {
        const LinearSizes<Isa> size(call);
        for (std::int64_t f = 0; s.data != nullptr && f < call.feature_size; ++f) {
            store_row<Isa>(s.dtype, address(s, b, n, f), s.column, call.value_size, from.s + f * size.values, 1);
        }
        if (z.data != nullptr) { store_row<Isa>(z.dtype, address(z, b, n, 0), z.row, call.feature_size, from.z, 1); }
    }
};

}  // namespace heed::cpu
