#pragma once
#include "cpu/attention/pack.h"
#include "cpu/kv_rows.h"

#include <cmath>

/// Decoding's steps 2 to 5: rows of a tile one by one, the lanes along the keys.

namespace heed::cpu {

template <class Isa>
struct DecodeSoftmax {
    static constexpr int L = Isa::lanes;
    using S = Simd<Isa, L>;
    static constexpr int most = L == 16 ? 16 : decode_rows;  ///< rows; more than decode_rows only four at a time
    /// Keys whose positions, mask and bias are looked up together.
    static constexpr std::int64_t block_keys = pattern_keys;
    static constexpr std::int32_t lane_numbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

    struct Scratch {
        RowTile* tile;
        float* q;          ///< [most][key_stride], floats or pairs
        float* sums;       ///< [most][value_stride]
        float* add;        ///< [most][64] bias and mask
        float* staging_k;  ///< [L] copies of rows
        float* staging_v;

        static std::size_t layout(const Call& call, char* memory, Scratch* to) {
            Arena arena{memory};
            const std::int64_t keys = round_up(call.head_size, L);
            const std::int64_t values = round_up(call.value_size, L);
            Scratch s{};
            s.tile = arena.take<RowTile>(1);
            s.q = arena.take<float>(static_cast<std::size_t>(most * keys));
            s.sums = arena.take<float>(static_cast<std::size_t>(most * values));
            s.add = arena.take<float>(static_cast<std::size_t>(most * block_keys));
            s.staging_k = arena.take<float>(static_cast<std::size_t>(L * round_up(call.head_size, 16)));
            s.staging_v = arena.take<float>(static_cast<std::size_t>(L * round_up(call.value_size, 16)));
            if (to != nullptr) { *to = s; }
            return arena.used;
        }
    };

    struct Stream {
        const Call& call;
        const Sequence& s;
        const Keys& keys;
        const RowTile& tile;
        const HeadRows& k;
        const HeadRows& v;
        const Scratch& scratch;
        std::int64_t begin, end;
        float largest[most];
        F<L> sum[most];

        /// Of short sequences a good part of the time goes into beginning: only rows that are computed are set.
        HEED_INLINE Stream(const Call& a_call, const Sequence& a_sequence, const Keys& some_keys, const RowTile& a_tile,
                           const HeadRows& key_rows, const HeadRows& value_rows, const Scratch& a_scratch, int rows)
            : call(a_call),
              s(a_sequence),
              keys(some_keys),
              tile(a_tile),
              k(key_rows),
              v(value_rows),
              scratch(a_scratch),
              begin(0),
              end(0) {
            for (int r = 0; r < rows; ++r) {
                largest[r] = negative_infinity;
                sum[r] = F<L>{};
            }
        }
    };

    /// What is known of a block of keys.
    struct Block {
        std::int32_t positions[block_keys];
        bool mask = false;   ///< some row's window ends within
        bool dense = false;  ///< scratch.add holds something
        bool plain = false;  ///< a score is only scaled
    };

    /// What becomes of L keys.
    struct Group {
        float k_scale[L];
        float v_scale[L];
        float weights[most][L];
        float pairs[most][L / 2];    ///< the weights as pairs of bf16, where values are interleaved
        std::int32_t seen[most][L];  ///< all bits where the row sees the key
    };

    /// Positions, mask and bias of a block. False where no row sees any of it.
    static bool look_up(const Stream& stream, std::int64_t begin, std::int64_t count, Block& block) {
        const Call& call = stream.call;
        const RowTile& tile = stream.tile;
        auto least = static_cast<std::int32_t>(begin);
        auto last = static_cast<std::int32_t>(begin + count - 1);
        const auto find_positions = [&] {
            fill_key_positions(call, stream.s, stream.keys, begin, count, block.positions, least, last);
            for (std::int64_t n = count; n < block_keys; ++n) { block.positions[n] = least; }
        };
        if (stream.keys.explicit_positions) { find_positions(); }
        block.mask = false;
        for (int r = 0; r < tile.rows; ++r) { block.mask = block.mask || least < tile.low[r] || last > tile.high[r]; }
        // Plain scores need neither a mask nor ALiBi nor a soft-cap, so that positions need not be known.
        block.plain = !block.mask && !call.alibi && call.cap <= 0;
        if (!stream.keys.explicit_positions && (block.mask || call.alibi || call.pattern)) { find_positions(); }
        PatternRun seen;
        if (call.pattern && pattern_runs(call, stream.s, stream.keys, tile, begin, count, &seen) == 0) { return false; }
        const bool pattern = call.pattern && seen.cover == Cover::some;
        block.dense = call.bias.data != nullptr || call.allow.data != nullptr || pattern;
        if (!block.dense) { return true; }
        block.plain = false;
        for (int r = 0; r < tile.rows; ++r) {
            float* row = stream.scratch.add + r * block_keys;
            dense_row<Isa>(call, tile, r, begin, count, row);
            if (pattern) { hide_by_pattern(call, tile, stream.keys, r, begin, count, block.positions, row); }
            for (std::int64_t n = count; n < block_keys; ++n) { row[n] = 0; }
        }
        return true;
    }

    /// Steps 1 to 5 of row r for the group that begins at key `at` of the block. True where something is hidden.
    template <class KeyRows, class ValueRows>
    static HEED_INLINE bool weigh(Stream& stream, const Block& block, std::int64_t at, std::int64_t count, int r,
                                  Group& group) {
        const Call& call = stream.call;
        const RowTile& tile = stream.tile;
        const F<L> hidden = S::all(negative_infinity);
        F<L> x = S::load(group.weights[r]);
        if constexpr (KeyRows::scaled) { x *= S::load(group.k_scale); }
        if (call.cap > 0) {
            x = tanh<Isa, L>(x * S::all(call.inverse_cap)) * S::all(call.cap);
        } else {
            x *= S::all(call.factor);
        }
        I<L> position = {};
        if (call.alibi || block.mask) { position = S::load(block.positions + at); }
        if (call.alibi) {
            const F<L> away = __builtin_convertvector(S::all(tile.position[r]) - position, F<L>);
            x -= S::all(tile.slope[r]) * S::max(away, -away);
        }
        if (block.dense) {
            const F<L> more = S::load(stream.scratch.add + r * block_keys + at);
            x = more == hidden ? hidden : x + S::max(S::all(least_bias), more) * S::all(std::numbers::log2e_v<float>);
        }
        if (block.mask) {
            const auto visible = (position >= S::all(tile.low[r])) & (position <= S::all(tile.high[r]));
            x = visible ? x : hidden;
        }
        if (count < L) { x = S::load(lane_numbers) < S::all(static_cast<std::int32_t>(count)) ? x : hidden; }
        x = S::rounded(x);
        float& top = stream.largest[r];
        if (!S::every(x <= S::all(top))) { raise(stream, x, r, top); }
        const F<L> w = S::exp2(x - S::all(top == negative_infinity ? 0.0F : top));
        stream.sum[r] += w;
        if constexpr (ValueRows::scaled) {
            S::store(group.weights[r], w * S::load(group.v_scale));
        } else {
            S::store(group.weights[r], w);
        }
        if constexpr (ValueRows::Product::depth_per_lane == 2) { S::store_bf16(group.pairs[r], w); }
        if (!block.dense && !block.mask) { return false; }  // values past the end are 0
        const I<L> seen = x != hidden;
        S::store(group.seen[r], seen);
        return !S::every(seen);
    }

    /// The same for a plain block and L keys.
    template <class KeyRows, class ValueRows>
    static HEED_INLINE void weigh_plain(Stream& stream, int r, Group& group) {
        F<L> x = S::load(group.weights[r]);
        if constexpr (KeyRows::scaled) { x *= S::load(group.k_scale); }
        x = S::rounded(x * S::all(stream.call.factor));
        float& top = stream.largest[r];
        if (!S::every(x <= S::all(top))) { raise(stream, x, r, top); }
        const F<L> w = S::exp2(x - S::all(top == negative_infinity ? 0.0F : top));
        stream.sum[r] += w;
        S::store(group.weights[r], ValueRows::scaled ? w * S::load(group.v_scale) : w);
        if constexpr (ValueRows::Product::depth_per_lane == 2) { S::store_bf16(group.pairs[r], w); }
    }

    /// A score above the largest so far: earlier sums shrink. NaN is passed over, as it is in the sums' own way.
    static __attribute__((noinline)) void raise(Stream& stream, F<L> x, int r, float& top) {
        float lane[L];
        S::store(lane, S::max(x, S::all(top)));
        for (int width = L / 2; width > 0; width /= 2) {
            for (int n = 0; n < width; ++n) { lane[n] = larger(lane[n], lane[n + width]); }
        }
        const float now = lane[0];
        if (now == top) { return; }
        const bool first = top == negative_infinity;  // nothing has been added up yet
        const float shrink = first ? 0.0F : exp2f(top - now);
        top = now;
        if (first) { return; }
        stream.sum[r] *= S::all(shrink);
        const std::int64_t stride = round_up(stream.call.value_size, L);
        float* sums = stream.scratch.sums + r * stride;
        for (std::int64_t e = 0; e < stride; e += L) { S::store(sums + e, S::load(sums + e) * S::all(shrink)); }
    }
};

}  // namespace heed::cpu
