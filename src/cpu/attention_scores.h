#pragma once
#include "cpu/attention_call.h"
#include "cpu/convert.h"
#include "cpu/gemm.h"

/// Steps 1 to 4 of attention for a tile of query rows and a block of keys, transposed: lanes run along the rows, so
/// that the softmax needs no work across lanes. Scores are in powers of two (times log2 e).

namespace heed::cpu {

/// A block of keys made ready for the products.
struct KeyBlock {
    std::int64_t begin = 0;  ///< index of its first key
    std::int64_t count = 0;
    const float* k = nullptr;  ///< [count][k_stride] rows (float, or pairs of bf16)
    std::int64_t k_stride = 0;
    const float* v = nullptr;  ///< [count][v_stride] rows, or [count/2] rows of pairs
    std::int64_t v_stride = 0;
    const std::int32_t* positions = nullptr;
    std::int32_t least = 0, most = 0;
    int values_finite = -1;  ///< -1: not yet looked

    /// Keys [from, to) of it, even numbers or the end.
    template <class Product>
    HEED_INLINE KeyBlock part(std::int64_t from, std::int64_t to) const {
        KeyBlock keys = *this;
        keys.begin += from;
        keys.count = to - from;
        keys.k += from * k_stride;
        keys.v += from / Product::depth_per_lane * v_stride;
        keys.positions += from;
        return keys;
    }
};

/// Scratch for scores of a tile: one of these a worker.
struct ScoreScratch {
    float* scores;            ///< [keys][stride]
    float* add;               ///< [keys][stride], the dense bias and mask
    float* rows;              ///< [64][keys] the same before transposing
    std::int32_t* positions;  ///< [keys]
};

/// Odd polynomial below 0.8, exponential above. Relative error about 2e-7.
template <class Isa, int L>
HEED_INLINE F<L> tanh(F<L> y) {
    using S = Simd<Isa, L>;
    const F<L> z = y * y;
    F<L> p = S::all(1.584755999e-03F);
    p = p * z + S::all(-7.409557000e-03F);
    p = p * z + S::all(2.130299083e-02F);
    p = p * z + S::all(-5.385233157e-02F);
    p = p * z + S::all(1.333222103e-01F);
    p = p * z + S::all(-3.333329736e-01F);
    const F<L> small = y + y * (z * p);
    const auto is_small = z <= S::all(0.64F);
    if (S::every(is_small)) { return small; }
    // 1 - 2/(e^2|y| + 1), with the sign of y; y beyond 10 is 1 in float32.
    const F<L> magnitude = S::min(S::all(10.0F), S::max(y, -y));
    const F<L> e = S::exp2(magnitude * S::all(2.8853900818F));
    const F<L> large = S::all(1.0F) - S::all(2.0F) / (e + S::all(1.0F));
    const F<L> with_sign = y < S::all(0.0F) ? -large : large;
    return is_small ? small : (y == y ? with_sign : y);
}

/// Vectors [first, last) of the tile that see some of keys [begin, end), by index.
HEED_INLINE void vectors_seeing(const RowTile& tile, std::int64_t begin, std::int64_t end, int& first, int& last) {
    first = tile.vectors;
    last = 0;
    for (int n = 0; n < tile.vectors; ++n) {
        if (tile.some_begin[n] < end && tile.some_end[n] > begin) {
            first = smaller(first, n);
            last = n + 1;
        }
    }
}

/// Step 1: scores[key][row] = q . k for the keys and vectors that have something to see.
template <class Isa, class Product, int L>
void raw_scores(const RowTile& tile, const KeyBlock& block, const float* q, std::int64_t depth, float* scores) {
    const std::int64_t stride = tile.lanes * tile.vectors;
    const std::int64_t end = block.begin + block.count;
    // On a diagonal the keys fall into runs, each seen by the same vectors.
    for (std::int64_t j = block.begin; j < end;) {
        std::int64_t next = end;
        for (int n = 0; n < tile.vectors; ++n) {
            if (tile.some_begin[n] > j) { next = smaller<std::int64_t>(next, tile.some_begin[n]); }
            if (tile.some_end[n] > j) { next = smaller<std::int64_t>(next, tile.some_end[n]); }
        }
        int first = 0;
        int last = 0;
        vectors_seeing(tile, j, next, first, last);
        if (first < last) {
            const std::int64_t at = j - block.begin;
            matrix_set<Isa, Product, L, Walk::along_row>(block.k + at * block.k_stride, block.k_stride, q + first * L,
                                                         stride, depth, scores + at * stride + first * L, stride,
                                                         next - j, last - first);
        }
        j = next;
    }
}

/// The address of row r of a pairwise tensor, at the block's first key.
HEED_INLINE const char* pair_row(const Tensor4& t, const RowTile& tile, std::int64_t r, std::int64_t key) {
    const std::int64_t at = tile.sequence * t.b + tile.head[r] * t.h + tile.index[r] * t.row + key * t.column;
    return t.data + at * static_cast<std::int64_t>(t.element_size);
}

/// Asks for the tile's bias and mask while the scores are being computed: a row of them is a jump in memory.
HEED_INLINE void fetch_dense(const Call& call, const RowTile& tile, const KeyBlock& block) {
    const Tensor4* both[2] = {&call.bias, &call.allow};
    for (const Tensor4* t : both) {
        if (t->data == nullptr || t->column != 1) { continue; }
        const int rows = t->row == 0 ? 1 : tile.rows;
        for (int r = 0; r < rows; ++r) {
            const char* row = pair_row(*t, tile, r, block.begin);
            for (std::int64_t at = 0; at < block.count * t->element_size; at += 64) {
                __builtin_prefetch(row + at, 0, 2);
            }
        }
    }
}

/// to[n] = what bias and allow-mask add to row r's score of key begin + n, -infinity where hidden.
template <class Isa>
void dense_row(const Call& call, const RowTile& tile, int r, std::int64_t begin, std::int64_t count, float* to) {
    const Tensor4& bias = call.bias;
    const Tensor4& allow = call.allow;
    if (bias.data != nullptr) {
        load_row<Isa>(bias.dtype, pair_row(bias, tile, r, begin), bias.column, count, to);
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

/// Bias, allow-mask and pattern of a tile as numbers to add, -infinity where hidden, transposed like the scores.
/// Returns false where there is nothing dense to add.
template <class Isa, int L>
bool dense_add(const Call& call, const RowTile& tile, const Keys& keys, const KeyBlock& block, Cover pattern,
               const ScoreScratch& scratch) {
    const bool use_pattern = call.pattern && pattern == Cover::some;
    const Tensor4& bias = call.bias;
    const Tensor4& allow = call.allow;
    if (bias.data == nullptr && allow.data == nullptr && !use_pattern) { return false; }
    const std::int64_t stride = tile.lanes * tile.vectors;
    if (allow.data == nullptr && !use_pattern && bias.dtype == DType::f32 && bias.column == 1) {
        transpose_rows<Isa, L>(
            [&](std::int64_t r) { return reinterpret_cast<const float*>(pair_row(bias, tile, r, block.begin)); },
            tile.rows, block.count, scratch.add, stride);
        return true;
    }
    const std::int64_t pitch = round_up(call.tile_keys, 16);
    for (int r = 0; r < tile.rows; ++r) {
        float* row = scratch.rows + r * pitch;
        dense_row<Isa>(call, tile, r, block.begin, block.count, row);
        if (use_pattern) { hide_by_pattern(call, tile, keys, r, block.begin, block.count, block.positions, row); }
    }
    transpose_rows<Isa, L>([&](std::int64_t r) { return scratch.rows + r * pitch; }, tile.rows, block.count,
                           scratch.add, stride);
    return true;
}

/// What the second pass needs to know of the first.
struct Scored {
    float factor;  ///< scores still to be multiplied by this
    bool partial;  ///< something in the tile is hidden, and is -infinity now
};

/// Is there nothing to do between the product and the softmax, for this tile and block?
HEED_INLINE bool is_plain(const Call& call, const RowTile& tile, const KeyBlock& block, Cover pattern) {
    bool plain = !(call.cap > 0) && !call.alibi && call.factor > 0 && call.bias.data == nullptr &&
                 call.allow.data == nullptr && pattern == Cover::all;
    for (int n = 0; n < tile.vectors; ++n) {
        plain = plain && tile.all_begin[n] <= block.begin && tile.all_end[n] >= block.begin + block.count;
    }
    return plain;
}

/// Steps 1 to 4 of a plain tile: the largest score falls out of the product. largest[row] is raised.
template <class Isa, class Product, int L>
Scored plain_scores(const Call& call, const RowTile& tile, const KeyBlock& block, const float* q, std::int64_t depth,
                    float* scores, float* largest) {
    using S = Simd<Isa, L>;
    const std::int64_t stride = tile.lanes * tile.vectors;
    float most[most_rows];
    for (std::int64_t r = 0; r < stride; ++r) { most[r] = negative_infinity; }
    matrix_set<Isa, Product, L, Walk::along_row>(block.k, block.k_stride, q, stride, depth, scores, stride, block.count,
                                                 tile.vectors, most);
    for (int n = 0; n < tile.vectors; ++n) {
        const F<L> scaled = S::rounded(S::load(most + n * L) * S::all(call.factor));
        S::store(largest + n * L, S::max(scaled, S::load(largest + n * L)));
    }
    return {.factor = call.factor, .partial = false};
}

/// Steps 2 to 4 in place over vector n, keys [begin, end) of the block; returns the largest (in the domain of the
/// scores as stored). Slope, where derivative is wanted: 1 - tanh^2 of the soft-cap.
template <class Isa, int L, bool Cap, bool Dense, bool Alibi, bool Mask, bool Scale>
HEED_INLINE F<L> adjust(const Call& call, const RowTile& tile, const KeyBlock& block, int n, std::int64_t begin,
                        std::int64_t end, float* scores, const float* add, float* cap_slope, F<L> largest) {
    using S = Simd<Isa, L>;
    const std::int64_t stride = tile.lanes * tile.vectors;
    const I<L> low = S::load(tile.low + n * L);
    const I<L> high = S::load(tile.high + n * L);
    const F<L> at = __builtin_convertvector(S::load(tile.position + n * L), F<L>);
    const F<L> slope = S::load(tile.slope + n * L);
    const F<L> hidden = S::all(negative_infinity);
    for (std::int64_t j = begin; j < end; ++j) {
        float* place = scores + j * stride + n * L;
        F<L> x = S::load(place);
        if constexpr (Cap) {
            const F<L> t = tanh<Isa, L>(x * S::all(call.inverse_cap));
            if (cap_slope != nullptr) { S::store(cap_slope + j * stride + n * L, S::all(1.0F) - t * t); }
            x = t * S::all(call.cap);
        } else if constexpr (Scale) {
            x *= S::all(call.factor);
        }
        if constexpr (Alibi) {
            const F<L> away = at - S::all(static_cast<float>(block.positions[j]));
            x -= slope * S::max(away, -away);
        }
        if constexpr (Dense) {
            const F<L> more = S::load(add + j * stride + n * L);
            x = more == hidden ? hidden : x + more * S::all(1.44269504F);
        }
        if constexpr (Mask) {
            const I<L> position = S::all(block.positions[j]);
            x = ((position >= low) & (position <= high)) ? x : hidden;
        }
        if constexpr (Cap || Dense || Alibi || Mask || Scale) { S::store(place, x); }
        largest = S::max(x, largest);
    }
    return largest;
}

/// Steps 2 to 4 over the whole tile; largest[row] is raised. Keys that a vector does not see at all are left alone.
template <class Isa, int L>
Scored adjust_scores(const Call& call, const RowTile& tile, const KeyBlock& block, bool dense, float* scores,
                     const float* add, float* cap_slope, float* largest) {
    const bool cap = call.cap > 0;
    const bool scale = !cap && (dense || call.alibi || !(call.factor > 0));
    Scored scored{.factor = cap || scale ? 1.0F : call.factor, .partial = dense};
    const std::int64_t block_end = block.begin + block.count;
    for (int n = 0; n < tile.vectors; ++n) {
        const std::int64_t begin = larger<std::int64_t>(tile.some_begin[n], block.begin);
        const std::int64_t end = smaller<std::int64_t>(tile.some_end[n], block_end);
        const std::int64_t all_begin = smaller(end, larger<std::int64_t>(tile.all_begin[n], begin));
        const std::int64_t all_end = smaller(end, larger<std::int64_t>(tile.all_end[n], all_begin));
        F<L> most = Simd<Isa, L>::all(negative_infinity);
        scored.partial =
            scored.partial || begin != all_begin || end != all_end || begin != block.begin || end != block_end;
        const auto run = [&]<bool Cap, bool Dense, bool Alibi, bool Scale>() {
            const auto part = [&]<bool Mask>(std::int64_t from, std::int64_t to) {
                if (from < to) {
                    most = adjust<Isa, L, Cap, Dense, Alibi, Mask, Scale>(
                        call, tile, block, n, from - block.begin, to - block.begin, scores, add, cap_slope, most);
                }
            };
            part.template operator()<true>(begin, all_begin);
            part.template operator()<false>(all_begin, all_end);
            part.template operator()<true>(all_end, end);
        };
        const int kind = (cap ? 4 : 0) + (dense ? 2 : 0) + (call.alibi ? 1 : 0);
        switch (kind) {
            case 0:
                scale ? run.template operator()<false, false, false, true>()
                      : run.template operator()<false, false, false, false>();
                break;
            case 1: run.template operator()<false, false, true, true>(); break;
            case 2: run.template operator()<false, true, false, true>(); break;
            case 3: run.template operator()<false, true, true, true>(); break;
            case 4: run.template operator()<true, false, false, false>(); break;
            case 5: run.template operator()<true, false, true, false>(); break;
            case 6: run.template operator()<true, true, false, false>(); break;
            default: run.template operator()<true, true, true, false>(); break;
        }
        Simd<Isa, L>::store(largest + n * L,
                            Simd<Isa, L>::max(Simd<Isa, L>::rounded(most * Simd<Isa, L>::all(scored.factor)),
                                              Simd<Isa, L>::load(largest + n * L)));
    }
    return scored;
}

}  // namespace heed::cpu
