#pragma once
#include "cpu/attention/scores.h"

/// Bias and masks given as tensors: where they lie, prefetching them, and adding them to scores.

namespace heed::cpu {

/// The address of row r of a pairwise tensor, at the block's first key.
HEED_INLINE const char* pair_row(const Tensor4& t, const RowTile& tile, std::int64_t r, std::int64_t key) {
    const std::int64_t at = tile.sequence * t.b + tile.head[r] * t.h + tile.index[r] * t.row + key * t.column;
    return t.data + at * static_cast<std::int64_t>(t.element_size);
}

/// Where the bias and the allow-mask of a tile's rows begin, at key 0; null where there is none.
struct BiasRows {
    const char* bias[most_rows];
    const char* allow[most_rows];

    HEED_INLINE void fill(const Call& call, const RowTile& tile) {
        for (int r = 0; r < tile.rows; ++r) {
            bias[r] = call.bias.data == nullptr ? nullptr : pair_row(call.bias, tile, r, 0);
            allow[r] = call.allow.data == nullptr ? nullptr : pair_row(call.allow, tile, r, 0);
        }
    }
};

/// Prefetches the bias of keys to come (the mask where there is no bias), a line each time it is called: each row is a
/// jump in memory, which the hardware does not foresee. Into the second-level cache, as rows that are whole pages apart
/// share a few lines of the first.
class BiasPrefetch {
public:
    /// Nothing to prefetch.
    BiasPrefetch() = default;

    /// Keys [begin, end) of `count` rows.
    HEED_INLINE BiasPrefetch(const Call& call, const BiasRows& rows, int count, std::int64_t begin, std::int64_t end) {
        const bool bias = call.bias.data != nullptr;
        const Tensor4& t = bias ? call.bias : call.allow;
        if (t.data == nullptr || t.column != 1) { return; }
        rows_ = bias ? rows.bias : rows.allow;
        count_ = t.row == 0 && t.h == 0 ? 1 : count;
        at_ = begin * t.element_size;
        end_ = end * t.element_size;
    }

    HEED_INLINE void operator()() {
        if (at_ >= end_) { return; }
        __builtin_prefetch(rows_[row_] + at_, 0, 2);
        if (++row_ == count_) {
            row_ = 0;
            at_ += 64;
        }
    }

    HEED_INLINE void rest() {
        while (left()) { (*this)(); }
    }
    HEED_INLINE bool left() const { return at_ < end_; }

private:
    const char* const* rows_ = nullptr;
    int count_ = 0;
    int row_ = 0;
    std::int64_t at_ = 0, end_ = 0;  ///< bytes from the rows' beginnings
};

/// Keys of a block that are scored and adjusted together: few enough for their scores to stay in the first-level cache,
/// a whole number of register tiles of any kind, and of vectors.
template <class Product>
constexpr std::int64_t adjusted_keys = 48 * Product::depth_per_lane;

/// What follows the block that is being computed.
struct NextBias {
    const BiasRows* rows = nullptr;
    int count = 0;
    std::int64_t begin = 0, end = 0;  ///< keys

    /// To prefetch the first of them.
    template <class Product = FloatProduct>
    HEED_INLINE BiasPrefetch ahead(const Call& call) const {
        if (rows == nullptr) { return {}; }
        return {call, *rows, count, begin, smaller(begin + adjusted_keys<Product>, end)};
    }
};

/// One after the other.
struct BothPrefetch {
    BiasPrefetch first, second;

    HEED_INLINE void operator()() { first.left() ? first() : second(); }
    HEED_INLINE void rest() {
        first.rest();
        second.rest();
    }
};

/// to[n] = what bias and allow-mask add to row r's score of key begin + n, -infinity where hidden.
template <class Isa>
void dense_row(const Call& call, const RowTile& tile, int r, std::int64_t begin, std::int64_t count, float* to) {
    const Tensor4& bias = call.bias;
    const Tensor4& allow = call.allow;
    if (bias.data != nullptr) {
        const char* from = pair_row(bias, tile, r, begin);
        load_row<Isa>(bias.dtype, from, bias.column, count, to);
        if (bias.dtype == DType::f64) {  // the lowest of them is no float
            const auto* numbers = reinterpret_cast<const double*>(from);
            for (std::int64_t n = 0; n < count; ++n) {
                if (numbers[n * bias.column] > -__builtin_inf()) { to[n] = larger(to[n], least_bias); }
            }
        }
    } else {
        for (std::int64_t n = 0; n < count; ++n) { to[n] = 0; }
    }
    if (allow.data == nullptr) { return; }
    const char* from = pair_row(allow, tile, r, begin);
    if (allow.column == 1) {
        for (std::int64_t n = 0; n < count; ++n) { to[n] = from[n] != 0 ? to[n] : negative_infinity; }
    } else {
        for (std::int64_t n = 0; n < count; ++n) { to[n] = from[n * allow.column] != 0 ? to[n] : negative_infinity; }
    }
}

/// row[n] = -infinity where the pattern hides key begin + n.
HEED_INLINE void hide_by_pattern(const Call& call, const RowTile& tile, const Keys& keys, int r, std::int64_t begin,
                                 std::int64_t count, const std::int32_t* positions, float* row) {
    std::uint8_t allowed[most_tile_keys];
    pattern_row(call, tile, keys, r, begin, count, positions, allowed);
    for (std::int64_t n = 0; n < count; ++n) { row[n] = allowed[n] != 0 ? row[n] : negative_infinity; }
}

/// Bias, allow-mask and pattern of a tile's rows as numbers to add, -infinity where hidden.
struct DenseRows {
    const float* row[most_rows];
    std::int64_t first = 0;  ///< where in them the block's first key is
    bool any = false;
    bool in_place = false;

    /// Rows of float32 are read where they lie.
    HEED_INLINE DenseRows(const Call& call, const RowTile& tile, Cover pattern, const BiasRows& rows,
                          const ScoreScratch& scratch) {
        const bool use_pattern = call.pattern && pattern == Cover::some;
        any = call.bias.data != nullptr || call.allow.data != nullptr || use_pattern;
        in_place =
            any && call.allow.data == nullptr && !use_pattern && call.bias.dtype == DType::f32 && call.bias.column == 1;
        if (!any) { return; }
        for (int r = 0; r < tile.lanes * tile.vectors; ++r) {
            const int n = smaller(r, tile.rows - 1);
            row[r] = in_place ? reinterpret_cast<const float*>(rows.bias[n])
                              : scratch.rows + n * round_up(call.tile_keys, 16);
        }
    }

    /// Anything else is written to scratch.rows first, a block at a time.
    template <class Isa>
    HEED_INLINE void move_to(const Call& call, const RowTile& tile, const Keys& keys, const KeyBlock& block,
                             Cover pattern, const ScoreScratch& scratch) {
        first = in_place ? block.begin : 0;
        for (int r = 0; any && !in_place && r < tile.rows; ++r) {
            float* to = scratch.rows + r * round_up(call.tile_keys, 16);
            dense_row<Isa>(call, tile, r, block.begin, block.count, to);
            if (call.pattern && pattern == Cover::some) {
                hide_by_pattern(call, tile, keys, r, block.begin, block.count, block.positions, to);
            }
        }
    }
};

/// What most calls with a bias need and nothing else: scores = factor * scores + bias * log2(e) for keys that all rows
/// see, in place; largest[row] is raised. Returns whether any is hidden.
template <class Isa, int L>
HEED_NOINLINE bool add_dense(float factor, int vectors, std::int64_t count, const DenseRows& dense, float* scores,
                             float* largest) {
    using S = Simd<Isa, L>;
    const std::int64_t stride = L * vectors;
    const F<L> hidden = S::all(negative_infinity);
    bool hides_any = false;
    for (int n = 0; n < vectors; ++n) {
        const float* const* rows = dense.row + n * L;
        F<L> most = S::load(largest + n * L);
        const auto add = [&]<bool Hides>(float* place, F<L> more) {
            F<L> x = S::load(place) * S::all(factor);
            if constexpr (Hides) {
                const F<L> least = S::max(S::all(least_bias), more);
                x = more != hidden ? least * S::all(std::numbers::log2e_v<float>) + x : more;
            } else {
                x = more * S::all(std::numbers::log2e_v<float>) + x;
            }
            S::store(place, x);
            most = S::max(x, most);
        };
        const auto add_each = [&]<bool Hides>(float* place, const F<L>(&more)[L]) {
            HEED_UNROLL
            for (int g = 0; g < L; ++g) {
                if (g % 4 == 0) { asm("" : "+r"(place)); }  // else an address is kept, and spilled, for each key
                add.template operator()<Hides>(place, more[g]);
                place += stride;
            }
        };
        std::int64_t j = 0;
        for (; j + L <= count; j += L) {
            F<L> more[L];
            HEED_UNROLL
            for (int r = 0; r < L; ++r) { more[r] = S::load(rows[r] + dense.first + j); }
            // As words, -infinity and the lowest numbers are above all others but some NaN: one look tells whether a
            // square has any.
            U<L> top = U<L>(more[0]);
            HEED_UNROLL
            for (int r = 1; r < L; ++r) { top = U<L>(more[r]) > top ? U<L>(more[r]) : top; }
            const bool hides = !S::every(I<L>(top < U<L>(S::all(least_bias))));
            hides_any = hides_any || hides;
            S::transpose(more);
            float* place = scores + j * stride + n * L;
            hides ? add_each.template operator()<true>(place, more) : add_each.template operator()<false>(place, more);
        }
        for (; j < count; ++j) {
            float lane[L];
            for (int r = 0; r < L; ++r) { lane[r] = rows[r][dense.first + j]; }
            hides_any = hides_any || !S::every(S::load(lane) != hidden);
            add.template operator()<true>(scores + j * stride + n * L, S::load(lane));
        }
        S::store(largest + n * L, most);
    }
    return hides_any;
}

/// add_dense and the product before it in one, for 64 rows: scores = scale * (q . k) + bias, to be multiplied by
/// log2(e). Interleaved with dot products shuffles cost nothing, so the bias of the next 16 keys is transposed there,
/// four rows at a time; what is then left to do with it is small enough for the end of a register tile.
template <class Isa, class Product, class Fused>
HEED_NOINLINE bool scores_with_bias(const KeyBlock& block, const float* q, std::int64_t depth, float scale,
                                    const DenseRows& dense, float* scores, float* largest, Fused& fused) {
    constexpr int L = 16, vectors = 4, stride = L * vectors, keys = 4;
    static_assert(stride == most_rows);
    using S = Simd<Isa, L>;
    const F<L> hidden = S::all(negative_infinity);
    float most[most_rows];
    for (float& x : most) { x = negative_infinity; }
    alignas(64) float transposed[2][L * most_rows];  // [key % 4][row / 4][key / 4][row % 4]
    U<L> top{};                                      // as in add_dense
    const auto transpose = [&](std::int64_t j, int four, float* to) HEED_INLINE_LAMBDA {
        F<L> x[4];
        HEED_UNROLL
        for (int r = 0; r < 4; ++r) {
            x[r] = S::load(dense.row[four * 4 + r] + dense.first + j);
            top = U<L>(x[r]) > top ? U<L>(x[r]) : top;
        }
        S::transpose_squares(x[0], x[1], x[2], x[3]);
        HEED_UNROLL
        for (int r = 0; r < 4; ++r) { S::store(to + r * 4 * most_rows + four * L, x[r]); }
    };
    const auto put = [&]<bool Hides>(const F<L>(&sum)[keys][vectors], const float* from, float* to) HEED_INLINE_LAMBDA {
        HEED_UNROLL
        for (int n = 0; n < vectors; ++n) {
            F<L> more[keys];
            HEED_UNROLL
            for (int m = 0; m < keys; ++m) { more[m] = S::load(from + (n * 4 + m) * L); }
            S::transpose_quarters(more[0], more[1], more[2], more[3]);
            F<L> largest_here = S::load(most + n * L);
            HEED_UNROLL
            for (int m = 0; m < keys; ++m) {
                const F<L> x = sum[m][n] * S::all(scale) + (Hides ? S::max(S::all(least_bias), more[m]) : more[m]);
                const F<L> seen = !Hides || more[m] != hidden ? x : hidden;
                largest_here = S::max(seen, largest_here);
                S::store(to + m * 4 * stride + n * L, seen);
            }
            S::store(most + n * L, largest_here);
        }
    };
    bool hides_any = false;
    std::int64_t j = 0;
    if (L <= block.count) {
        for (int four = 0; four < most_rows / 4; ++four) { transpose(0, four, transposed[0]); }
    }
    for (int now = 0; j + L <= block.count; j += L, now = 1 - now) {
        const bool hides = !S::every(I<L>(top < U<L>(S::all(least_bias))));
        hides_any = hides_any || hides;
        top = U<L>{};
        const std::int64_t next =
            j + 2 * L <= block.count ? j + L : j;  // the last of them once more, which is never used
        for (int first = 0; first < 4; ++first) {
            F<L> sum[keys][vectors] = {};
            const float* k = block.k + (j + first) * block.k_stride;
            const std::int64_t steps = depth / 4;
            for (int part = 0; part < 4; ++part) {
                transpose(next, 4 * first + part, transposed[1 - now]);
                multiply_add<Isa, Product, L, keys, vectors, Walk::along_row>(
                    k + part * steps, 4 * block.k_stride, q + part * steps * stride, stride,
                    part < 3 ? steps : depth - 3 * steps, sum, fused);
            }
            const float* from = transposed[now] + first * 4 * most_rows;
            float* to = scores + (j + first) * stride;
            hides ? put.template operator()<true>(sum, from, to) : put.template operator()<false>(sum, from, to);
        }
    }
    if (j < block.count) {
        matrix_set<Isa, Product, L, Walk::along_row>(block.k + j * block.k_stride, block.k_stride, q, stride, depth,
                                                     scores + j * stride, stride, block.count - j, vectors, nullptr,
                                                     fused);
    }
    for (; j < block.count; ++j) {
        for (int n = 0; n < vectors; ++n) {
            float lane[L];
            for (int r = 0; r < L; ++r) { lane[r] = dense.row[n * L + r][dense.first + j]; }
            const F<L> more = S::load(lane);
            hides_any = hides_any || !S::every(more != hidden);
            float* place = scores + j * stride + n * L;
            const F<L> x = more != hidden ? S::load(place) * S::all(scale) + S::max(S::all(least_bias), more) : hidden;
            S::store(place, x);
            S::store(most + n * L, S::max(x, S::load(most + n * L)));
        }
    }
    for (int n = 0; n < vectors; ++n) {
        const F<L> scaled = S::rounded(S::load(most + n * L) * S::all(std::numbers::log2e_v<float>));
        S::store(largest + n * L, S::max(scaled, S::load(largest + n * L)));
    }
    return hides_any;
}

}  // namespace heed::cpu
