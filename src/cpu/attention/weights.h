#pragma once
#include "cpu/attention/pack.h"
#include "cpu/attention/softmax.h"

#include <cmath>

/// Steps 1 to 5 for a few rows of one head, written out: for inspection.

namespace heed::cpu {

template <class Isa, class Product>
class Weights {
public:
    /// out[r][j], row r at out + r * stride, for the tile's rows and all keys of the entry.
    static void rows(const Call& call, const Sequence& s, const Keys& keys, const RowTile& tile,
                     detail::Scratch& memory, std::int64_t stride, float* out) {
        const Sizes<Isa, Product> z(call);
        Buffers buffer{};
        const std::size_t bytes = layout(call, nullptr, buffer);
        layout(call, static_cast<char*>(memory.at_least(bytes)), buffer);
        pack_queries<Isa, Product>(call, tile, buffer.staging, buffer.q);
        for (int r = 0; r < most_rows; ++r) {
            buffer.largest[r] = negative_infinity;
            buffer.sum[r] = 0;
        }
        with_lanes<Isa>(tile.lanes, [&]<int L>() {
            const std::int64_t width = call.pattern ? pattern_keys : call.tile_keys;
            for (std::int64_t j = 0; j < s.keys; j += width) {
                KeyBlock block{.begin = j, .count = smaller(width, s.keys - j)};
                block_scores<L>(call, s, keys, tile, block, buffer);
                const std::int64_t tile_stride = tile.lanes * tile.vectors;
                transpose_rows<Isa, L>([&](std::int64_t n) { return buffer.score.scores + n * tile_stride; },
                                       block.count, tile.rows, buffer.score.rows, round_up(call.tile_keys, 16));
                for (int r = 0; r < tile.rows; ++r) {
                    __builtin_memcpy(out + r * stride + j, buffer.score.rows + r * round_up(call.tile_keys, 16),
                                     static_cast<std::size_t>(block.count) * 4);
                }
            }
        });
        for (int r = 0; r < tile.rows; ++r) {
            normalise(call, tile, r, s.keys, buffer.largest[r], buffer.sum[r], out + r * stride);
        }
    }

private:
    struct Buffers {
        float* q;
        float* staging;
        float* largest;
        float* sum;
        PackScratch pack;
        ScoreScratch score;
    };

    static std::size_t layout(const Call& call, char* memory, Buffers& b) {
        Arena arena{memory};
        const Sizes<Isa, Product> z(call);
        const auto floats = [&](std::int64_t count) { return arena.take<float>(static_cast<std::size_t>(count)); };
        b.q = floats(z.depth * most_rows);
        b.staging = floats(most_rows * z.row_lanes);
        b.largest = floats(most_rows);
        b.sum = floats(most_rows);
        b.pack = PackScratch::take(arena, z.keys * z.key_stride, 0);
        b.score.scores = floats((z.keys + 1) * most_rows);
        b.score.rows = floats(most_rows * round_up(z.keys, 16));
        b.score.positions = arena.take<std::int32_t>(static_cast<std::size_t>(z.keys));
        return arena.used;
    }

    /// Scores of one block in powers of two, -infinity where hidden; raises largest and sum.
    template <int L>
    static void block_scores(const Call& call, const Sequence& s, const Keys& keys, const RowTile& tile,
                             KeyBlock& block, const Buffers& buffer) {
        using S = Simd<Isa, L>;
        const Sizes<Isa, Product> z(call);
        const std::int64_t stride = tile.lanes * tile.vectors;
        float* scores = buffer.score.scores;
        const F<L> hidden = S::all(negative_infinity);
        fill_key_positions(call, s, keys, block.begin, block.count, buffer.score.positions, block.least, block.most);
        block.positions = buffer.score.positions;
        PatternRun run;
        const bool sees = tile.begin < block.begin + block.count && tile.end > block.begin &&
                          (!call.pattern || pattern_runs(call, s, keys, tile, block.begin, block.count, &run) > 0);
        const Cover pattern = run.cover;
        Scored scored{1, true};
        float now[most_rows];
        for (int r = 0; r < most_rows; ++r) { now[r] = negative_infinity; }
        if (sees) {
            pack_keys<Isa, Product>(call, s, tile.head[0] / call.group, buffer.pack, block);
            BiasRows bias_rows;
            bias_rows.fill(call, tile);
            scored = score_block<Isa, Product, L>(call, tile, keys, block, pattern,
                                                  {bias_rows, {}, buffer.q, z.depth, nullptr, now}, buffer.score);
        }
        for (int n = 0; n < tile.vectors; ++n) {
            std::int64_t begin = larger<std::int64_t>(tile.some_begin[n] - block.begin, 0);
            std::int64_t end = smaller<std::int64_t>(tile.some_end[n] - block.begin, block.count);
            if (!sees || begin >= end) { begin = end = 0; }
            const F<L> before = S::load(buffer.largest + n * L);
            const F<L> top = S::max(before, S::load(now + n * L));
            const F<L> base = top == hidden ? F<L>{} : top;
            F<L> sum = S::load(buffer.sum + n * L) * S::exp2(before - base);
            for (std::int64_t j = 0; j < block.count; ++j) {
                float* place = scores + j * stride + n * L;
                const F<L> x = j >= begin && j < end ? S::load(place) * S::all(scored.factor) : hidden;
                sum += S::exp2(x - base);
                S::store(place, x);
            }
            S::store(buffer.largest + n * L, top);
            S::store(buffer.sum + n * L, sum);
        }
    }

    static void normalise(const Call& call, const RowTile& tile, int row, std::int64_t keys, float largest, float sum,
                          float* out) {
        using S = Simd<Isa, Isa::lanes>;
        float top = largest;
        if (call.sinks) {
            const auto sink = static_cast<float>(sink_of(call, tile.head[row]) * std::numbers::log2e);
            top = largest != largest ? largest : larger(largest, sink);
            if (top != negative_infinity) {
                sum = sum * (largest == negative_infinity ? 0.0F : exp2f(largest - top)) + exp2f(sink - top);
            }
        }
        const float base = top == negative_infinity ? 0.0F : top;
        const float factor = top == negative_infinity && sum == 0 ? 0.0F : 1.0F / sum;
        std::int64_t j = 0;
        for (; j + Isa::lanes <= keys; j += Isa::lanes) {
            const F<Isa::lanes> x = S::load(out + j);
            const F<Isa::lanes> w = S::exp2(x - S::all(base)) * S::all(factor);
            S::store(out + j, x == S::all(negative_infinity) ? F<Isa::lanes>{} : w);
        }
        for (; j < keys; ++j) { out[j] = out[j] == negative_infinity ? 0.0F : exp2f(out[j] - base) * factor; }
    }
};

}  // namespace heed::cpu
