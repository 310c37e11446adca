#pragma once
#include "cpu/attention/backward/plan.h"
#include "cpu/attention/pack.h"

#include <cmath>

/// What the backward products read: rows and keys in the forms they need.

namespace heed::cpu {

/// Sizes in 32-bit lanes.
template <class Isa, class Product>
struct BackwardSizes {
    std::int64_t keys;         ///< of a block
    std::int64_t score_depth;  ///< lanes of a row of q or k
    std::int64_t value_depth;  ///< lanes of a row of dout or v
    std::int64_t head_stride;  ///< of rows of dk, dq and of q as vectors
    std::int64_t value_stride;
    HEED_INLINE explicit BackwardSizes(const Call& call)
        : keys(call.tile_keys),
          score_depth((call.head_size + Product::depth_per_lane - 1) / Product::depth_per_lane),
          value_depth((call.value_size + Product::depth_per_lane - 1) / Product::depth_per_lane),
          head_stride(round_up(call.head_size, Isa::lanes)),
          value_stride(round_up(call.value_size, Isa::lanes)) {}
    /// Of k, v, dk and dv together, for choosing how many share the cache.
    HEED_INLINE std::int64_t bytes_per_key() const { return 4 * (2 * head_stride + value_depth + value_stride); }
};

/// The rows of a tile as vectors, [64][stride], or [32] rows of pairs: in scratch, or where they lie.
struct RowVectors {
    const float* data;
    std::int64_t stride;
    int finite;  ///< -1: not yet looked
};

/// A tile of rows and what it sees of a panel of keys.
struct TileVisit {
    static constexpr int most = most_runs * static_cast<int>(BackwardSplit::most_super_tiles);
    RowTile tile;
    std::int64_t number;  ///< of the tile
    int count;
    PatternRun runs[most];
};

template <class Isa, class Product>
struct BackwardScratch {
    TileVisit* visits;    ///< this one, the next, and one for large scores
    bool* has_large_lse;  ///< this tile: see large_scores.h
    RowVectors* q_rows;
    RowVectors* dout_rows;
    float* q_columns;     ///< [score_depth][64]
    float* dout_columns;  ///< [value_depth][64]
    float* q_copy;        ///< [64][head_stride], or pairs
    float* dout_copy;     ///< [64][value_stride], or pairs
    float* staging;       ///< [64][widest row]
    float* out_columns;   ///< [value_size][64], and dout's next to it where that is kept in pairs
    float* lse;           ///< [64] in powers of two
    float* lse_rest;      ///< [64] what of an f64 lse a float does not hold: at large scores it matters
    float* delta;         ///< [64]
    float* largest;       ///< [64]
    float* dq_tile;       ///< [64][head_stride]
    float* dw;            ///< [keys][64]
    float* keep_mask;     ///< [keys][64], with dropout
    float* cap_slope;     ///< [keys][64], with a soft-cap
    float* w_pairs;       ///< [keys][32]
    float* dx_pairs;      ///< [keys][32]
    float* dx_key_pairs;  ///< [keys/2][64]
    float* k;             ///< [super_keys] packed keys
    float* v;
    float* k_rows;  ///< pairs interleaved along the keys
    float* dk;      ///< [super_keys][head_stride]
    float* dv;      ///< [super_keys][value_stride]
    bool* filled;   ///< [super_keys / pattern_keys]: squares of dk and dv that hold something
    float* dq;      ///< [group][queries][head_size], where one chunk is all
    ScoreScratch score;

    static std::size_t layout(const Call& call, std::int64_t super_keys, std::int64_t dq_floats, char* memory,
                              BackwardScratch* to) {
        Arena arena{memory};
        BackwardScratch s{};
        const BackwardSizes<Isa, Product> z(call);
        const std::int64_t tile = z.keys * most_rows;
        const std::int64_t widest = larger(z.head_stride, z.value_stride);
        constexpr bool pairs = Product::depth_per_lane == 2;
        const bool dense = call.bias.data != nullptr || call.allow.data != nullptr || call.pattern;
        const auto floats = [&](std::int64_t count) { return arena.take<float>(static_cast<std::size_t>(count)); };
        s.visits = arena.take<TileVisit>(3);
        s.has_large_lse = arena.take<bool>(1);
        s.q_rows = arena.take<RowVectors>(1);
        s.dout_rows = arena.take<RowVectors>(1);
        s.q_columns = floats(z.score_depth * most_rows);
        s.dout_columns = floats(z.value_depth * most_rows);
        s.q_copy = floats(most_rows * z.head_stride);
        s.dout_copy = floats(most_rows * z.value_stride);
        s.staging = floats(most_rows * widest);
        s.out_columns = floats((pairs ? 2 : 1) * call.value_size * most_rows);
        s.lse = floats(most_rows);
        s.lse_rest = floats(most_rows);
        s.delta = floats(most_rows);
        s.largest = floats(most_rows);
        s.dq_tile = floats(most_rows * z.head_stride);
        s.score.scores = floats(tile + most_rows);
        s.dw = floats(tile + most_rows);
        s.keep_mask = floats(call.drop || call.keep.data != nullptr ? tile : 0);
        s.cap_slope = call.cap > 0 ? floats(tile) : nullptr;
        s.w_pairs = floats(pairs ? tile / 2 + most_rows : 0);
        s.dx_pairs = floats(pairs ? tile / 2 + most_rows : 0);
        s.dx_key_pairs = floats(pairs ? tile / 2 + most_rows : 0);
        s.score.rows = floats(dense ? most_rows * round_up(z.keys, 16) : 0);
        s.score.positions = arena.take<std::int32_t>(static_cast<std::size_t>(z.keys));
        s.k = floats(super_keys * z.head_stride);
        s.v = floats(super_keys * z.value_depth);
        s.k_rows = floats(pairs ? (super_keys + 1) / 2 * z.head_stride : 0);
        s.dk = floats(super_keys * z.head_stride);
        s.dv = floats(super_keys * z.value_stride);
        s.filled = arena.take<bool>(static_cast<std::size_t>(super_keys / pattern_keys + 1));
        s.dq = floats(dq_floats);
        if (to != nullptr) { *to = s; }
        return arena.used;
    }
};

/// Keys whose k and v are packed together.
struct KeyPanel {
    std::int64_t begin = 0;
    std::int64_t count = 0;
    const float* k = nullptr;  ///< rows to broadcast from: [count][k_stride]
    std::int64_t k_stride = 0;
    const float* v = nullptr;
    std::int64_t v_stride = 0;
    const float* k_rows = nullptr;  ///< rows as vectors: the same, or pairs interleaved along the keys
    std::int64_t k_rows_stride = 0;
    int keys_finite = -1;
    float* dk = nullptr;  ///< the gradients are accumulated here: in scratch, or where they go
    std::int64_t dk_stride = 0;
    float* dv = nullptr;
    std::int64_t dv_stride = 0;
};

template <class Isa, class Product>
void pack_panel(const Call& call, const Sequence& s, std::int64_t g, const BackwardScratch<Isa, Product>& scratch,
                KeyPanel& panel) {
    const BackwardSizes<Isa, Product> z(call);
    const auto first_of = [&](const Tensor4& t) {
        return t.data + (s.batch * t.b + g * t.h + (s.key_begin + panel.begin) * t.row) * t.element_size;
    };
    const char* k = first_of(call.k);
    const char* v = first_of(call.v);
    const std::int64_t size = call.k.element_size;
    if constexpr (Product::depth_per_lane == 2) {
        const auto place = [&](const Tensor4& from, const char* first, std::int64_t columns, std::int64_t depth,
                               float* own, const float*& rows, std::int64_t& stride) {
            const bool in_place = from.column == 1 && columns % 2 == 0 && from.row % 2 == 0 &&
                                  reinterpret_cast<std::uintptr_t>(first) % 4 == 0 &&
                                  avoids_aliasing(columns * size, from.row * size);
            for (std::int64_t j = 0; j < panel.count && !in_place; ++j) {
                copy_pairs<Isa>(first + j * from.row * size, from.column, columns, own + j * depth);
            }
            rows = in_place ? reinterpret_cast<const float*>(first) : own;
            stride = in_place ? from.row / 2 : depth;
        };
        place(call.k, k, call.head_size, z.score_depth, scratch.k, panel.k, panel.k_stride);
        place(call.v, v, call.value_size, z.value_depth, scratch.v, panel.v, panel.v_stride);
        for (std::int64_t j = 0; j < panel.count; j += 2) {
            const char* next = j + 1 < panel.count ? k + (j + 1) * call.k.row * size : nullptr;
            interleave_rows<Isa>(k + j * call.k.row * size, next, call.k.column, call.head_size, z.head_stride,
                                 scratch.k_rows + j / 2 * z.head_stride);
        }
        panel.k_rows = scratch.k_rows;
        panel.k_rows_stride = z.head_stride;
    } else {
        const bool plain = call.k.dtype == DType::f32;
        if (plain && call.k.column == 1 && call.head_size == z.head_stride &&
            avoids_aliasing(call.head_size * size, call.k.row * size)) {
            panel.k = reinterpret_cast<const float*>(k);
            panel.k_stride = call.k.row;
        } else {
            for (std::int64_t j = 0; j < panel.count; ++j) {
                float* to = scratch.k + j * z.head_stride;
                load_row<Isa>(call.k.dtype, k + j * call.k.row * size, call.k.column, call.head_size, to);
                for (std::int64_t c = call.head_size; c < z.head_stride; ++c) { to[c] = 0; }
            }
            panel.k = scratch.k;
            panel.k_stride = z.head_stride;
        }
        panel.k_rows = panel.k;
        panel.k_rows_stride = panel.k_stride;
        if (plain && call.v.column == 1 && avoids_aliasing(call.value_size * size, call.v.row * size)) {
            panel.v = reinterpret_cast<const float*>(v);
            panel.v_stride = call.v.row;
        } else {
            for (std::int64_t j = 0; j < panel.count; ++j) {
                load_row<Isa>(call.v.dtype, v + j * call.v.row * size, call.v.column, call.value_size,
                              scratch.v + j * z.value_depth);
            }
            panel.v = scratch.v;
            panel.v_stride = z.value_depth;
        }
    }
}

template <class Isa, class Product>
bool keys_finite(const Call& call, KeyPanel& panel) {
    if (panel.keys_finite < 0) {
        const BackwardSizes<Isa, Product> z(call);
        bool finite = true;
        for (std::int64_t j = 0; j < panel.count && finite; ++j) {
            finite = all_finite<Isa, Product>(panel.k + j * panel.k_stride, z.score_depth);
        }
        panel.keys_finite = finite ? 1 : 0;
    }
    return panel.keys_finite == 1;
}

/// Looked up where it matters: only in a tile that hides something.
template <class Isa, class Product>
bool rows_finite(const RowTile& tile, std::int64_t size, RowVectors& rows) {
    if (rows.finite < 0) {
        constexpr int d = Product::depth_per_lane;
        bool finite = true;
        for (std::int64_t r = 0; r < (tile.rows + d - 1) / d && finite; ++r) {
            finite = all_finite<Isa, Product>(rows.data + r * rows.stride, size);
        }
        rows.finite = finite ? 1 : 0;
    }
    return rows.finite == 1;
}

/// The tile's rows of one tensor: columns[depth][stride] transposed, and as vectors: where they lie if they lie well,
/// otherwise in `copy`; pairs need no vectors where there is no copy.
template <class Isa, class Product>
HEED_INLINE RowVectors pack_row_forms(const Tensor4& from, const RowTile& tile, std::int64_t size, std::int64_t depth,
                                      std::int64_t row_stride, float* staging, float* columns, float* copy) {
    constexpr bool pairs = Product::depth_per_lane == 2;
    RowVectors rows{copy, row_stride, -1};
    const bool in_place = !pairs && from.dtype == DType::f32 && from.column == 1 && size == row_stride &&
                          tile.head[0] == tile.head[tile.rows - 1] && avoids_aliasing(size * 4, from.row * 4);
    if (in_place) {  // the rows of one head follow each other
        rows.data = reinterpret_cast<const float*>(row_address(from, tile, 0));
        rows.stride = from.row;
    }
    // Pairs are read as words. Rows that share cache sets are copied first: transposing jumps from one to the other.
    bool direct = pairs && from.dtype == DType::bf16 && from.column == 1 && size % 2 == 0 &&
                  avoids_aliasing(size * from.element_size, from.row * from.element_size);
    const char* place[most_rows];
    std::uintptr_t all_bits = 0;
    for (int r = 0; r < tile.rows; ++r) {
        place[r] = row_address(from, tile, r);
        all_bits |= reinterpret_cast<std::uintptr_t>(place[r]);
    }
    direct = direct && all_bits % 4 == 0;
    float* own = pairs ? staging : copy;
    for (int r = 0; r < tile.rows && !in_place && !direct; ++r) {
        float* row = own + r * row_stride;
        const char* at = place[r];
        place[r] = reinterpret_cast<const char*>(row);
        if (pairs && from.dtype == DType::bf16) {
            copy_pairs<Isa>(at, from.column, size, row);
        } else {
            load_row<Isa>(from.dtype, at, from.column, size, row);
            if constexpr (pairs) {  // float rows next to bf16 ones: rounded, like the weights they meet
                auto* words = reinterpret_cast<std::uint16_t*>(row);
                for (std::int64_t c = 0; c < size; ++c) { words[c] = narrow_bf16(row[c]); }
                if (size % 2 != 0) { words[size] = 0; }
            } else {
                for (std::int64_t c = size; c < row_stride; ++c) { row[c] = 0; }
            }
        }
    }
    const auto source = [&](std::int64_t r) { return reinterpret_cast<const float*>(place[r]); };
    if constexpr (pairs) {
        for (int r = 0; copy != nullptr && r < tile.rows; r += 2) {
            const char* next = r + 1 < tile.rows ? place[r + 1] : nullptr;
            interleave_rows<Isa>(place[r], next, 1, size, row_stride, copy + r / 2 * row_stride);
        }
    }
    with_lanes<Isa>(tile.lanes, [&]<int L>() {
        transpose_rows<Isa, L>(source, tile.rows, depth, columns, tile.lanes * tile.vectors);
    });
    return rows;
}

/// delta = dout . out, summed in the order of the product dout V, so that the two cancel exactly where they are equal.
/// A row that sees nothing has output 0 and passes no gradient, whatever dout holds.
template <class Isa, class Product>
HEED_INLINE void row_deltas(const Call& call, const RowTile& tile, const BackwardScratch<Isa, Product>& scratch) {
    const BackwardSizes<Isa, Product> z(call);
    const std::int64_t stride = tile.lanes * tile.vectors;
    // add(sum, e, at) adds lane e of the depth to the rows at `at`. Four vectors side by side, as each waits for
    // itself.
    const auto sum_up = [&](std::int64_t depth, auto&& add) HEED_INLINE_LAMBDA {
        with_lanes<Isa>(tile.lanes, [&]<int L>() HEED_INLINE_LAMBDA {
            const auto sums = [&]<int Vectors>(std::int64_t at) HEED_INLINE_LAMBDA {
                F<L> sum[Vectors] = {};
                for (std::int64_t e = 0; e < depth; ++e) {
                    HEED_UNROLL
                    for (int n = 0; n < Vectors; ++n) {
                        sum[n] = add.template operator()<L>(sum[n], e * stride + at + n * L);
                    }
                }
                for (int n = 0; n < Vectors; ++n) { Simd<Isa, L>::store(scratch.delta + at + n * L, sum[n]); }
            };
            int n = 0;
            for (; n + 4 <= tile.vectors; n += 4) { sums.template operator()<4>(n * L); }
            for (; n < tile.vectors; ++n) { sums.template operator()<1>(n * L); }
        });
    };
    if (Product::depth_per_lane == 2 && call.out.dtype == DType::bf16 && call.dout.dtype == DType::bf16) {
        pack_row_forms<Isa, Product>(call.out, tile, call.value_size, z.value_depth, z.value_stride, scratch.staging,
                                     scratch.out_columns, nullptr);
        sum_up(z.value_depth, [&]<int L>(F<L> sum, std::int64_t at) HEED_INLINE_LAMBDA {
            const F<L> out = Simd<Isa, L>::load(scratch.out_columns + at);
            const U<L> words = U<L>(out);
            const U<L> passes =
                (U<L>((words & 0x7fffU) != 0U) & 0xffffU) | (U<L>((words & 0x7fff0000U) != 0U) & 0xffff0000U);
            const auto dout = U<L>(Simd<Isa, L>::load(scratch.dout_columns + at));
            return Product::template add<Isa, L>(sum, out, F<L>(dout & passes));
        });
        return;
    }
    const auto load = [&](const Tensor4& from, float* columns) {
        const bool in_place = from.dtype == DType::f32 && from.column == 1;
        for (int r = 0; r < tile.rows && !in_place; ++r) {
            load_row<Isa>(from.dtype, row_address(from, tile, r), from.column, call.value_size,
                          scratch.staging + r * z.value_stride);
        }
        const auto row = [&](std::int64_t r) {
            return in_place ? reinterpret_cast<const float*>(row_address(from, tile, r))
                            : scratch.staging + r * z.value_stride;
        };
        with_lanes<Isa>(tile.lanes,
                        [&]<int L>() { transpose_rows<Isa, L>(row, tile.rows, call.value_size, columns, stride); });
    };
    const float* dout = scratch.dout_columns;
    if constexpr (Product::depth_per_lane == 2) {
        load(call.dout, scratch.out_columns + call.value_size * most_rows);
        dout = scratch.out_columns + call.value_size * most_rows;
    }
    load(call.out, scratch.out_columns);
    sum_up(call.value_size, [&]<int L>(F<L> sum, std::int64_t at) HEED_INLINE_LAMBDA {
        const F<L> out = Simd<Isa, L>::load(scratch.out_columns + at);
        const F<L> upstream = out == F<L>{} ? F<L>{} : Simd<Isa, L>::load(dout + at);
        return sum + out * upstream;
    });
}

/// q, dout, lse and delta of the tile. Tasks that meet the same tile leave its deltas in `known` for each other; should
/// two compute them at once, both write the same numbers.
template <class Isa, class Product>
void pack_rows(const Call& call, const RowTile& tile, DeltaSlot& known, const BackwardScratch<Isa, Product>& scratch) {
    const BackwardSizes<Isa, Product> z(call);
    *scratch.q_rows = pack_row_forms<Isa, Product>(call.q, tile, call.head_size, z.score_depth, z.head_stride,
                                                   scratch.staging, scratch.q_columns, scratch.q_copy);
    *scratch.dout_rows = pack_row_forms<Isa, Product>(call.dout, tile, call.value_size, z.value_depth, z.value_stride,
                                                      scratch.staging, scratch.dout_columns, scratch.dout_copy);
    row_lses(call, tile, scratch.lse, scratch.lse_rest);
    for (int r = 0; r < most_rows; ++r) { scratch.delta[r] = 0; }
    if (known.is_ready()) {
        for (int r = 0; r < most_rows; ++r) { __atomic_load(known.delta + r, scratch.delta + r, __ATOMIC_RELAXED); }
        return;
    }
    row_deltas<Isa, Product>(call, tile, scratch);
    for (int r = 0; r < tile.rows; ++r) {
        if (scratch.lse[r] != __builtin_inff()) { scratch.delta[r] -= row_dlse(call, tile, r); }
    }
    for (int r = 0; r < most_rows; ++r) { __atomic_store(known.delta + r, scratch.delta + r, __ATOMIC_RELAXED); }
    __atomic_store_n(&known.ready, 1, __ATOMIC_RELEASE);
}

}  // namespace heed::cpu
