#pragma once
#include "cpu/attention_finish.h"
#include "cpu/attention_pack.h"
#include "cpu/attention_softmax.h"

namespace heed::cpu {

/// Short sequences: what a task to come will read, asked for in thirds before the products of this one.
struct NextHead {
    const Call* call = nullptr;  ///< null: there is none, or it is near enough
    std::int64_t b = 0, g = 0, queries = 0, keys = 0;

    HEED_INLINE void fetch_queries() const {
        for (std::int64_t n = 0; call != nullptr && n < call->group; ++n) {
            fetch(call->q, g * call->group + n, queries, call->head_size);
        }
    }
    HEED_INLINE void fetch_keys() const {
        if (call != nullptr) { fetch(call->k, g, keys, call->head_size); }
    }
    HEED_INLINE void fetch_values() const {
        if (call != nullptr) { fetch(call->v, g, keys, call->value_size); }
    }

private:
    HEED_INLINE void fetch(const Tensor4& from, std::int64_t h, std::int64_t rows, std::int64_t size) const {
        const char* row = from.data + (b * from.b + h * from.h) * from.element_size;
        for (std::int64_t r = 0; r < rows; ++r, row += from.row * from.element_size) {
            for (std::int64_t at = 0; at < size * from.element_size; at += 64) { __builtin_prefetch(row + at, 0, 2); }
        }
    }
};

/// Scratch of one worker, laid out in one piece of memory.
template <class Isa, class Product>
struct ForwardScratch {
    RowTile* tiles;
    float* q;             ///< [tiles_per_task][depth][64]
    float* sums;          ///< [tiles_per_task][64][value_stride]
    float* largest;       ///< [tiles_per_task][64]
    float* sum;           ///< [tiles_per_task][64]
    float* staging;       ///< [64][row_stride] query rows on their way to q
    float* now;           ///< [64]
    float* alpha;         ///< [64]
    bool* fresh;          ///< [tiles_per_task] nothing has been summed yet
    bool* straight;       ///< [tiles_per_task] one block is all there is: its product goes straight to out
    float* pairs;         ///< [keys/2][64] weights as pairs of bf16
    BiasRows* bias_rows;  ///< [tiles_per_task]
    PatternWork* work;    ///< [tiles_per_task] with a pattern
    PackScratch pack;
    ScoreScratch score;
    NextHead next;

    static std::size_t layout(const Call& call, std::int64_t tiles, char* memory, ForwardScratch* to) {
        Arena arena{memory};
        ForwardScratch s{};
        const Sizes<Isa, Product> z(call);
        const auto count = static_cast<std::size_t>(tiles);
        s.tiles = arena.take<RowTile>(count);
        s.q = arena.take<float>(count * z.depth * most_rows);
        s.sums = arena.take<float>(count * most_rows * z.value_stride);
        s.largest = arena.take<float>(count * most_rows);
        s.sum = arena.take<float>(count * most_rows);
        s.staging = arena.take<float>(most_rows * z.row_lanes);
        s.now = arena.take<float>(most_rows);
        s.alpha = arena.take<float>(most_rows);
        s.fresh = arena.take<bool>(count);
        s.straight = arena.take<bool>(count);
        s.pairs = arena.take<float>((z.keys + 1) / 2 * most_rows);
        s.work = arena.take<PatternWork>(call.pattern ? count : 0);
        s.bias_rows = arena.take<BiasRows>(count);
        s.pack = PackScratch::take(arena, z.keys * z.key_stride, z.keys * z.value_stride);
        s.score.scores = arena.take<float>((z.keys + 1) * most_rows);
        const bool dense = call.bias.data != nullptr || call.allow.data != nullptr || call.pattern;
        s.score.rows = arena.take<float>(dense ? most_rows * round_up(z.keys, 16) : 0);
        s.score.positions = arena.take<std::int32_t>(z.keys);
        if (to != nullptr) { *to = s; }
        return arena.used;
    }
};

template <class Isa, class Product>
class Forward {
public:
    using Scratch = ForwardScratch<Isa, Product>;

    /// Tiles [first_tile, first_tile + tiles) of key/value head g over keys [key_begin, key_end).
    static void task(const Call& call, const Sequence& s, const Split& split, std::int64_t b, std::int64_t g,
                     std::int64_t first_tile, std::int64_t tiles, std::int64_t key_begin, std::int64_t key_end,
                     const Scratch& scratch, const Partial* partial) {
        const Sizes<Isa, Product> z(call);
        const Keys keys = keys_of(call, s);
        const bool dense = call.bias.data != nullptr || call.allow.data != nullptr;
        std::int64_t begin = key_end;
        std::int64_t end = key_begin;
        RowsAhead ahead;  // of out
        for (std::int64_t t = 0; t < tiles; ++t) {
            RowTile& tile = scratch.tiles[t];
            fill_rows(call, s, keys, split, b, g, first_tile + t, Isa::lanes, tile);
            pack_queries<Isa, Product>(call, tile, scratch.staging, scratch.q + t * z.depth * most_rows);
            if (partial == nullptr && tile.rows == most_rows) { ahead.add(call.out, tile, call.value_size); }
            if (dense) { scratch.bias_rows[t].fill(call, tile); }
            scratch.fresh[t] = true;
            for (int r = 0; r < most_rows; ++r) {
                scratch.largest[t * most_rows + r] = negative_infinity;
                scratch.sum[t * most_rows + r] = 0;
            }
            if (tile.visible) {
                begin = smaller<std::int64_t>(begin, tile.begin);
                end = larger<std::int64_t>(end, tile.end);
            }
        }
        begin = larger(begin, key_begin);
        begin -= (begin - key_begin) % call.tile_keys;
        end = smaller(end, key_end);
        for (std::int64_t t = 0; t < tiles; ++t) {
            const RowTile& tile = scratch.tiles[t];
            scratch.straight[t] = partial == nullptr && !call.pattern && tile.visible &&
                                  Finish<Isa>::goes_straight(call, tile, z.value_stride) &&
                                  (tile.begin - begin) / call.tile_keys == (tile.end - 1 - begin) / call.tile_keys;
        }
        if (dense && begin < end) { NextBias{scratch.bias_rows, scratch.tiles[0].rows, begin, end}.ahead(call).rest(); }
        const std::int64_t stride = pattern_blocks * call.tile_keys;
        for (std::int64_t j = begin; j < end; j += call.tile_keys) {
            const std::int64_t number = call.pattern ? (j - begin) % stride / call.tile_keys : 0;
            if (call.pattern && number == 0) {
                bool sees = false;
                for (std::int64_t t = 0; t < tiles; ++t) {
                    sees =
                        pattern_work(call, s, keys, scratch.tiles[t], j, smaller(stride, end - j), scratch.work[t]) ||
                        sees;
                }
                if (!sees) {
                    j += stride - call.tile_keys;
                    continue;
                }
            }
            KeyBlock block{.begin = j, .count = smaller(call.tile_keys, end - j)};
            bool packed = false;
            KeysAhead keys_ahead;
            const std::int64_t following = smaller(call.tile_keys, end - j - block.count);
            if (asks_for_keys) {
                keys_ahead.add(value_rows(call, s, g), j + block.count, following, call.value_size);
                keys_ahead.add(key_rows(call, s, g), j + block.count, following, call.head_size);
            }
            for (std::int64_t t = 0; t < tiles; ++t) {
                const RowTile& tile = scratch.tiles[t];
                if (tile.begin >= j + block.count || tile.end <= j) { continue; }
                const int seen = call.pattern ? scratch.work[t].count[number] : 1;
                if (seen == 0) { continue; }
                if (!packed) {
                    fill_key_positions(call, s, keys, j, block.count, scratch.score.positions, block.least, block.most);
                    block.positions = scratch.score.positions;
                    pack_keys<Isa, Product>(call, s, g, scratch.pack, block);
                    pack_values<Isa, Product>(call, s, g, scratch.pack, block);
                    packed = true;
                }
                const std::int64_t after = t + 1 < tiles ? t + 1 : 0;
                const std::int64_t from = t + 1 < tiles ? j : j + call.tile_keys;
                const NextBias next{dense && from < end ? scratch.bias_rows + after : nullptr,
                                    scratch.tiles[after].rows, from, end};
                with_lanes<Isa>(tile.lanes, [&]<int L>() {
                    if (!call.pattern) {
                        step<L>(call, tile, keys, block, Cover::all, next, t, ahead, keys_ahead, scratch);
                    }
                    for (int n = 0; call.pattern && n < seen; ++n) {
                        const PatternRun& run = scratch.work[t].runs[number][n];
                        KeyBlock part = block.template part<Product>(run.begin, run.end);
                        step<L>(call, tile, keys, part, run.cover, next, t, ahead, keys_ahead, scratch);
                    }
                });
            }
        }
        for (std::int64_t t = 0; t < tiles; ++t) {
            if (scratch.fresh[t]) { clear_sums(z, scratch, t); }
            if (scratch.straight[t]) {
                Finish<Isa>::put_sums(call, scratch.tiles[t], sums_of(z, scratch, t));
            } else if (partial == nullptr) {
                Finish<Isa>::rows(call, scratch.tiles[t], sums_of(z, scratch, t), z.value_stride);
            } else {
                keep(scratch, t, partial[t], z.value_stride);
            }
        }
    }

private:
    /// Products of pairs take half the time, so that more of the waiting for memory would show.
    static constexpr bool asks_for_keys = Product::depth_per_lane == 2;

    template <int L>
    static void step(const Call& call, const RowTile& tile, const Keys& keys, KeyBlock& block, Cover pattern,
                     const NextBias& next, std::int64_t t, RowsAhead& ahead, KeysAhead& keys_ahead,
                     const Scratch& scratch) {
        const Sizes<Isa, Product> z(call);
        float* scores = scratch.score.scores;
        const std::int64_t stride = tile.lanes * tile.vectors;
        float* sums = scratch.sums + t * most_rows * z.value_stride;
        const RowState state{scratch.largest + t * most_rows, scratch.sum + t * most_rows};
        const float* q = scratch.q + t * z.depth * most_rows;
        __builtin_memcpy(scratch.now, state.largest, static_cast<std::size_t>(stride) * 4);
        Scored scored{};
        scratch.next.fetch_queries();
        if (is_plain(call, tile, block, pattern)) {
            scored = plain_scores<Isa, Product, L>(call, tile, block, q, z.depth, scores, scratch.now);
        } else {
            scored = score_block<Isa, Product, L>(call, tile, keys, block, pattern, scratch.bias_rows[t], next, q,
                                                  z.depth, scratch.score, nullptr, scratch.now);
        }
        scratch.next.fetch_keys();
        const bool careful = scored.partial && !values_finite<Isa, Product>(call, block);
        const bool drops = call.drop || call.keep.data != nullptr;
        const bool in_pairs =
            Product::depth_per_lane == 2 && !careful && (!drops || (call.keep.data == nullptr && block.begin % 2 == 0));
        if (in_pairs) {
            // Their sum is also what lse is made of: rough only where nobody asks for that.
            const auto weigh_in_pairs = call.has_lse ? weigh_pairs<Isa, L, false> : weigh_pairs<Isa, L, true>;
            weigh_in_pairs(tile, block, scored, scores, scratch.now, state, scratch.alpha, scratch.pairs);
            if (drops) { drop_pairs<Isa, L>(call, tile, block, scratch.pairs); }
        } else {
            weigh<Isa, L>(tile, block, scored, careful, scores, scratch.now, state, scratch.alpha);
            if (drops) { drop<Isa, L>(call, tile, block, scores); }
        }
        const Old old = scratch.fresh[t] ? Old::none : Old::scale;
        if (scratch.fresh[t] && careful) { clear_sums(z, scratch, t); }
        scratch.fresh[t] = false;
        if (careful) {
            scratch.straight[t] = false;
            careful_product<Isa, Product>(call, tile, block, scores, scratch.alpha, sums);
            return;
        }
        const float* weights = scores;
        if constexpr (Product::depth_per_lane == 2) {
            if (!in_pairs) { pair_weights<Isa, L>(tile, block, scores, scratch.pairs); }
            weights = scratch.pairs;
        }
        const auto span = [&](std::int64_t m, int count) {
            if constexpr (L == Isa::lanes) { ahead.ask(2); }  // only whole tiles have rows to ask for
            std::int64_t from = block.count;
            std::int64_t to = 0;
            for (std::int64_t n = m / L; n <= (m + count - 1) / L; ++n) {
                const std::int64_t vector_begin = larger<std::int64_t>(tile.some_begin[n] - block.begin, 0);
                const std::int64_t vector_end = smaller<std::int64_t>(tile.some_end[n] - block.begin, block.count);
                if (vector_begin < vector_end) {
                    from = smaller(from, vector_begin);
                    to = larger(to, vector_end);
                }
            }
            constexpr int d = Product::depth_per_lane;
            return KeySpan{from / d, (to + d - 1) / d};
        };
        scratch.next.fetch_values();
        const auto add = [&](float* to, std::int64_t to_stride, Old how, const float* factor) {
            const auto product = [&](auto&& beside) {
                matrix_add<Isa, Product, Isa::lanes, Walk::along_column>(
                    weights, stride, block.v, block.v_stride, to, to_stride, tile.rows,
                    static_cast<int>(z.value_stride / Isa::lanes), how, factor, span, beside);
            };
            if constexpr (asks_for_keys) {
                product(keys_ahead);
            } else {
                product(NothingBeside{});
            }
        };
        if (scratch.straight[t]) {
            float factor[most_rows];
            Finish<Isa>::factors(call, tile, sums_of(z, scratch, t), factor);
            add(reinterpret_cast<float*>(row_address(call.out, tile, 0)), call.out.row, Old::none_then_scale, factor);
        } else {
            add(sums, z.value_stride, old, scratch.alpha);
        }
    }

    static Partial sums_of(const Sizes<Isa, Product>& z, const Scratch& scratch, std::int64_t t) {
        return {scratch.sums + t * most_rows * z.value_stride, scratch.largest + t * most_rows,
                scratch.sum + t * most_rows};
    }

    static void clear_sums(const Sizes<Isa, Product>& z, const Scratch& scratch, std::int64_t t) {
        __builtin_memset(scratch.sums + t * most_rows * z.value_stride, 0,
                         static_cast<std::size_t>(scratch.tiles[t].rows * z.value_stride) * 4);
    }

    struct KeySpan {
        std::int64_t begin;
        std::int64_t end;
    };

    static void keep(const Scratch& scratch, std::int64_t t, const Partial& to, std::int64_t value_stride) {
        const auto rows = static_cast<std::size_t>(scratch.tiles[t].rows);
        __builtin_memcpy(to.sums, scratch.sums + t * most_rows * value_stride, rows * value_stride * 4);
        __builtin_memcpy(to.largest, scratch.largest + t * most_rows, rows * 4);
        __builtin_memcpy(to.sum, scratch.sum + t * most_rows, rows * 4);
    }
};

}  // namespace heed::cpu
