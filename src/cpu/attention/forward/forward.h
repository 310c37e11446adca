#pragma once
#include "cpu/attention/forward/finish.h"
#include "cpu/attention/pack.h"
#include "cpu/attention/pairs.h"

namespace heed::cpu {

/// Short sequences: what a task to come will read, prefetched in thirds before the products of this one.
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
    float* maxima;        ///< [64] of the rows, with this block
    float* alpha;         ///< [2][64]
    bool* fresh;          ///< [tiles_per_task] nothing has been summed yet
    bool* direct;         ///< [tiles_per_task] one block is all there is: its product is written directly to out
    float* pairs;         ///< [2][keys/2][64] weights as pairs of bf16
    BiasRows* bias_rows;  ///< [tiles_per_task]
    PatternWork* work;    ///< [tiles_per_task] with a pattern
    PackScratch pack;
    ScoreScratch score;
    NextHead next;
    const ForwardTask* next_task;  ///< most likely; null: not worth prefetching

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
        s.maxima = arena.take<float>(most_rows);
        s.alpha = arena.take<float>(2 * most_rows);
        s.fresh = arena.take<bool>(count);
        s.direct = arena.take<bool>(count);
        s.pairs = arena.take<float>((z.keys + 1) / 2 * 2 * most_rows);
        s.work = arena.take<PatternWork>(call.pattern ? count : 0);
        s.bias_rows = arena.take<BiasRows>(count);
        s.pack = PackScratch::take(arena, z.keys * z.key_stride, (z.keys + 1) / 2 * 2 * z.value_stride);
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

    /// Short sequences have a way of their own (NextHead); with a window or a pattern the first keys are elsewhere.
    static HEED_INLINE bool worth_prefetching(const Call& call, const Split& split) {
        return split.heads_per_tile == 1 && split.tiles >= split.tiles_per_task && call.problem->reach.left < 0 &&
               !call.pattern;
    }

    static void task(const Call& call, const ForwardTask& of, const Scratch& scratch, const Partial* partial) {
        const Keys keys = keys_of(call, of.s);
        const std::int64_t tiles = of.tiles;
        Progress progress;
        const auto [begin, end] = begin_tiles(call, of, keys, scratch, partial != nullptr);
        const bool dense = call.bias.data != nullptr || call.allow.data != nullptr;
        if (dense && begin < end) {
            NextBias{scratch.bias_rows, scratch.tiles[0].rows, begin, end}.template ahead<Product>(call).rest();
        }
        const std::int64_t stride = pattern_blocks * call.tile_keys;
        for (std::int64_t j = begin; j < end; j += call.tile_keys) {
            const std::int64_t number = call.pattern ? (j - begin) % stride / call.tile_keys : 0;
            if (call.pattern && number == 0 && !any_work(call, of, keys, {j, smaller(j + stride, end)}, scratch)) {
                j += stride - call.tile_keys;
                continue;
            }
            KeyBlock block{.begin = j, .count = smaller(call.tile_keys, end - j)};
            bool packed = false;
            prefetch_following(call, of, {j + block.count, end}, partial != nullptr, progress.ahead, scratch);
            for (std::int64_t t = 0; t < tiles; ++t) {
                const RowTile& tile = scratch.tiles[t];
                if (tile.begin >= j + block.count || tile.end <= j) { continue; }
                const int seen = call.pattern ? scratch.work[t].count[number] : 1;
                if (seen == 0) { continue; }
                if (!packed) {
                    pack_block(call, of, keys, block, progress, scratch);
                    packed = true;
                }
                const std::int64_t after = t + 1 < tiles ? t + 1 : 0;
                const std::int64_t from = t + 1 < tiles ? j : j + call.tile_keys;
                const NextBias next{dense && from < end ? scratch.bias_rows + after : nullptr,
                                    scratch.tiles[after].rows, from, end};
                with_lanes<Isa>(tile.lanes, [&]<int L>() {
                    if (!call.pattern) { step<L>(call, keys, block, Cover::all, next, t, progress, scratch); }
                    for (int n = 0; call.pattern && n < seen; ++n) {
                        const PatternRun& run = scratch.work[t].runs[number][n];
                        KeyBlock part = block.template part<Product>(run.begin, run.end);
                        step<L>(call, keys, part, run.cover, next, t, progress, scratch);
                    }
                });
            }
        }
        catch_up(call, progress, scratch);
        finish_tiles(call, tiles, scratch, partial);
    }

private:
    /// Weights whose product with V is still to come: it is computed together with the next weights.
    struct Waiting {
        const RowTile* tile = nullptr;  ///< null: there are none
        std::int64_t t = 0;
        std::int64_t begin = 0, count = 0;  ///< of the block of keys
        const float* v = nullptr;
        std::int64_t v_stride = 0;
        const float* weights = nullptr;
        const float* alpha = nullptr;

        HEED_INLINE void wait(const RowTile& of, std::int64_t number, const KeyBlock& block, const float* made,
                              const float* rescale) {
            *this = {&of, number, block.begin, block.count, block.v, block.v_stride, made, rescale};
        }
    };

    /// What goes from one step of a task to the next.
    struct Progress {
        KeyPrefetch ahead;
        Waiting waiting;
        int slot = 0;  ///< which weights are the next to be written
        int half = 0;  ///< which values are the last that were packed
    };

    struct KeySpan {
        std::int64_t begin;
        std::int64_t end;
    };

    /// Fills the task's tiles and packs their queries. Returns the keys that any of them sees, from the beginning of a
    /// block on.
    static KeySpan begin_tiles(const Call& call, const ForwardTask& of, const Keys& keys, const Scratch& scratch,
                               bool is_part) {
        const Sizes<Isa, Product> z(call);
        const bool dense = call.bias.data != nullptr || call.allow.data != nullptr;
        std::int64_t begin = of.key_end;
        std::int64_t end = of.key_begin;
        for (std::int64_t t = 0; t < of.tiles; ++t) {
            RowTile& tile = scratch.tiles[t];
            fill_rows(call, {of.s, keys, of.b, of.g}, of.split, of.first + t, Isa::lanes, tile);
            pack_queries<Isa, Product>(call, tile, scratch.staging, scratch.q + t * z.depth * most_rows);
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
        begin = larger(begin, of.key_begin);
        begin -= (begin - of.key_begin) % call.tile_keys;
        end = smaller(end, of.key_end);
        for (std::int64_t t = 0; t < of.tiles; ++t) {
            const RowTile& tile = scratch.tiles[t];
            scratch.direct[t] = !is_part && !call.pattern && tile.visible &&
                                Finish<Isa>::can_write_products(call, tile, z.value_stride) &&
                                (tile.begin - begin) / call.tile_keys == (tile.end - 1 - begin) / call.tile_keys;
        }
        return {begin, end};
    }

    /// With a pattern: what each tile has to do for these keys. False where none has anything.
    static bool any_work(const Call& call, const ForwardTask& of, const Keys& keys, const KeySpan& span,
                         const Scratch& scratch) {
        bool sees = false;
        for (std::int64_t t = 0; t < of.tiles; ++t) {
            sees =
                pattern_work(call, of.s, keys, scratch.tiles[t], span.begin, span.end - span.begin, scratch.work[t]) ||
                sees;
        }
        return sees;
    }

    /// The block of keys after this one, `rest` being those that are left; after the last, what the task writes to, and
    /// what the next task reads first.
    static HEED_INLINE void prefetch_following(const Call& call, const ForwardTask& of, const KeySpan& rest,
                                               bool is_part, KeyPrefetch& ahead, const Scratch& scratch) {
        const std::int64_t following = smaller(call.tile_keys, rest.end - rest.begin);
        ahead.forget();
        if (following > 0) {
            ahead.add(value_rows(call, of.s, of.g), rest.begin, following, call.value_size);
            ahead.add(key_rows(call, of.s, of.g), rest.begin, following, call.head_size);
            return;
        }
        for (std::int64_t t = 0; !is_part && t < of.tiles; ++t) { prefetch_out(call, scratch.tiles[t], ahead); }
        if (scratch.next_task != nullptr) { prefetch(call, *scratch.next_task, ahead); }
    }

    static HEED_INLINE void pack_block(const Call& call, const ForwardTask& of, const Keys& keys, KeyBlock& block,
                                       Progress& progress, const Scratch& scratch) {
        const Sizes<Isa, Product> z(call);
        fill_key_positions(call, of.s, keys, block.begin, block.count, scratch.score.positions, block.least,
                           block.most);
        block.positions = scratch.score.positions;
        pack_keys<Isa, Product>(call, of.s, of.g, scratch.pack, block);
        // Values of the block before are still to be multiplied: pairs take half the room.
        progress.half = Product::depth_per_lane == 2 ? 1 - progress.half : 0;
        float* values = scratch.pack.v + progress.half * ((z.keys + 1) / 2) * z.value_stride;
        pack_values<Isa, Product>(call, of.s, of.g, values, block);
    }

    static void finish_tiles(const Call& call, std::int64_t tiles, const Scratch& scratch, const Partial* partial) {
        const Sizes<Isa, Product> z(call);
        for (std::int64_t t = 0; t < tiles; ++t) {
            if (scratch.fresh[t]) { clear_sums(z, scratch, t); }
            if (scratch.direct[t]) {
                Finish<Isa>::put_sums(call, scratch.tiles[t], sums_of(z, scratch, t));
            } else if (partial == nullptr) {
                Finish<Isa>::rows(call, scratch.tiles[t], sums_of(z, scratch, t), z.value_stride);
            } else {
                keep(scratch, t, partial[t], z.value_stride);
            }
        }
    }

    /// Rows that the end of a task writes to.
    static HEED_INLINE void prefetch_out(const Call& call, const RowTile& tile, KeyPrefetch& ahead) {
        if (tile.rows == most_rows && tile.head[0] == tile.head[most_rows - 1]) {  // they follow each other
            ahead.add(call.out, row_address(call.out, tile, 0), most_rows, call.value_size);
        }
    }

    /// What a task begins with: its queries, and the first block of keys and values.
    static void prefetch(const Call& call, const ForwardTask& task, KeyPrefetch& ahead) {
        for (std::int64_t t = task.first; t < task.first + task.tiles; ++t) {
            const std::int64_t row = t / call.group * task.split.rows_per_tile;
            const std::int64_t head = task.g * call.group + t % call.group;
            const std::int64_t at = task.s.batch * call.q.b + head * call.q.h + (task.s.query_begin + row) * call.q.row;
            ahead.add(call.q, call.q.data + at * call.q.element_size,
                      smaller(task.split.rows_per_tile, task.s.queries - row), call.head_size);
        }
        const std::int64_t keys = smaller(call.tile_keys, task.key_end - task.key_begin);
        ahead.add(key_rows(call, task.s, task.g), task.key_begin, keys, call.head_size);
        ahead.add(value_rows(call, task.s, task.g), task.key_begin, keys, call.value_size);
    }

    template <int L>
    static void step(const Call& call, const Keys& keys, KeyBlock& block, Cover pattern, const NextBias& next,
                     std::int64_t t, Progress& progress, const Scratch& scratch) {
        const RowTile& tile = scratch.tiles[t];
        const Sizes<Isa, Product> z(call);
        float* scores = scratch.score.scores;
        const std::int64_t stride = tile.lanes * tile.vectors;
        const RowState state{scratch.largest + t * most_rows, scratch.sum + t * most_rows};
        const float* q = scratch.q + t * z.depth * most_rows;
        __builtin_memcpy(scratch.maxima, state.largest, static_cast<std::size_t>(stride) * 4);
        Scored scored{};
        scratch.next.fetch_queries();
        if (is_plain(call, tile, block, pattern)) {
            scored = plain_scores<Isa, Product, L>(call, tile, block, q, z.depth, scores, scratch.maxima);
        } else {
            scored = score_block<Isa, Product, L>(call, tile, keys, block, pattern,
                                                  {scratch.bias_rows[t], next, q, z.depth, nullptr, scratch.maxima},
                                                  scratch.score);
        }
        scratch.next.fetch_keys();
        const bool nan_safe = scored.partial && !values_finite<Isa, Product>(call, block);
        const bool drops = call.drop || call.keep.data != nullptr;
        const bool in_pairs = Product::depth_per_lane == 2 && !nan_safe &&
                              (!drops || (call.keep.data == nullptr && block.begin % 2 == 0));
        float* pairs = scratch.pairs + progress.slot * ((z.keys + 1) / 2) * most_rows;
        float* alpha = scratch.alpha + progress.slot * most_rows;
        if constexpr (Product::depth_per_lane == 2) {
            if (in_pairs) {
                // Their sum is also what lse is made of: rough only where lse is not wanted.
                const auto weigh_pairs = call.has_lse ? pair_weights_of<L, false> : pair_weights_of<L, true>;
                weigh_pairs(call, tile, block, {scored.factor, state, alpha, pairs}, progress, scratch);
                if (drops) { drop_pairs<Isa, L>(call, tile, block, pairs); }
                scratch.next.fetch_values();
                progress.waiting.wait(tile, t, block, pairs, alpha);
                progress.slot = 1 - progress.slot;
                return;
            }
            catch_up(call, progress, scratch);
        }
        weigh<Isa, L>(tile, block, scored, nan_safe, scores, scratch.maxima, state, alpha);
        if (drops) { drop<Isa, L>(call, tile, block, scores); }
        if (nan_safe) {
            if (scratch.fresh[t]) { clear_sums(z, scratch, t); }
            scratch.fresh[t] = scratch.direct[t] = false;
            nan_safe_product<Isa, Product>(call, tile, block, scores, alpha, sums_of(z, scratch, t).sums);
            return;
        }
        if constexpr (Product::depth_per_lane == 2) { pair_weights<Isa, L>(tile, block, scores, pairs); }
        scratch.next.fetch_values();
        progress.waiting.wait(tile, t, block, Product::depth_per_lane == 2 ? pairs : scores, alpha);
        catch_up(call, progress, scratch);
    }

    struct Weighing {
        float factor;  ///< of the scores
        const RowState& state;
        float *alpha, *pairs;
    };
    /// Weights of the scores, and the product that waits.
    template <int L, bool Rough>
    static void pair_weights_of(const Call& call, const RowTile& tile, const KeyBlock& block, const Weighing& w,
                                Progress& progress, const Scratch& scratch) {
        PairWeights<Isa, L, Rough> weights(tile, block, w.factor, scratch.score.scores, scratch.maxima, w.pairs);
        if constexpr (L == Isa::lanes && !UsesTiles<Product>) {
            if (progress.waiting.tile != nullptr) {
                add_values(call, progress, scratch, [&](auto&&... of) {
                    matrix_add_fused<Isa, Product, Rough>(of..., weights, progress.ahead);
                });
            }
        }
        catch_up(call, progress, scratch);
        weights.finish(w.state, w.alpha);
    }

    /// The product that waits, by itself.
    static void catch_up(const Call& call, Progress& progress, const Scratch& scratch) {
        if (progress.waiting.tile == nullptr) { return; }
        add_values(call, progress, scratch, [&](auto&&... of) {
            matrix_add<Isa, Product, Isa::lanes, Walk::along_column>(of..., progress.ahead);
        });
    }

    /// Step 7 of the weights that wait: sums = alpha sums + weights V, or directly to out. multiply(...) is matrix_add.
    template <class Multiply>
    static HEED_INLINE void add_values(const Call& call, Progress& progress, const Scratch& scratch,
                                       Multiply&& multiply) {
        const Sizes<Isa, Product> z(call);
        const Waiting& waiting = progress.waiting;
        const RowTile& tile = *waiting.tile;
        const auto span = [&](std::int64_t m, int count) {
            std::int64_t from = waiting.count;
            std::int64_t to = 0;
            const int shift = __builtin_ctz(static_cast<unsigned>(tile.lanes));
            for (std::int64_t n = m >> shift; n <= (m + count - 1) >> shift; ++n) {
                const std::int64_t vector_begin = larger<std::int64_t>(tile.some_begin[n] - waiting.begin, 0);
                const std::int64_t vector_end = smaller<std::int64_t>(tile.some_end[n] - waiting.begin, waiting.count);
                if (vector_begin < vector_end) {
                    from = smaller(from, vector_begin);
                    to = larger(to, vector_end);
                }
            }
            constexpr int d = Product::depth_per_lane;
            return KeySpan{from / d, (to + d - 1) / d};
        };
        const auto add = [&](float* to, std::int64_t to_stride, Old how, const float* factor) {
            multiply(waiting.weights, tile.lanes * tile.vectors, waiting.v, waiting.v_stride, to, to_stride, tile.rows,
                     static_cast<int>(z.value_stride / Isa::lanes), how, factor, span);
        };
        if (scratch.direct[waiting.t]) {
            float factor[most_rows];
            Finish<Isa>::factors(call, tile, sums_of(z, scratch, waiting.t), factor);
            add(reinterpret_cast<float*>(row_address(call.out, tile, 0)), call.out.row, Old::none_then_scale, factor);
        } else {
            const Old old = scratch.fresh[waiting.t] ? Old::none : Old::scale;
            add(sums_of(z, scratch, waiting.t).sums, z.value_stride, old, waiting.alpha);
        }
        scratch.fresh[waiting.t] = false;
        progress.waiting.tile = nullptr;
    }

    static Partial sums_of(const Sizes<Isa, Product>& z, const Scratch& scratch, std::int64_t t) {
        return {scratch.sums + t * most_rows * z.value_stride, scratch.largest + t * most_rows,
                scratch.sum + t * most_rows};
    }

    static void clear_sums(const Sizes<Isa, Product>& z, const Scratch& scratch, std::int64_t t) {
        __builtin_memset(scratch.sums + t * most_rows * z.value_stride, 0,
                         static_cast<std::size_t>(scratch.tiles[t].rows * z.value_stride) * 4);
    }

    static void keep(const Scratch& scratch, std::int64_t t, const Partial& to, std::int64_t value_stride) {
        const auto rows = static_cast<std::size_t>(scratch.tiles[t].rows);
        __builtin_memcpy(to.sums, scratch.sums + t * most_rows * value_stride, rows * value_stride * 4);
        __builtin_memcpy(to.largest, scratch.largest + t * most_rows, rows * 4);
        __builtin_memcpy(to.sum, scratch.sum + t * most_rows, rows * 4);
    }
};

}  // namespace heed::cpu
