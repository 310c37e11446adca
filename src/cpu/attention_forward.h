#pragma once
#include "cpu/attention_few_rows.h"
#include "cpu/attention_pack.h"
#include "cpu/attention_softmax.h"

#include <cmath>

namespace heed::cpu {

/// Floats of one tile's packed queries, in either form.
template <class Isa, class Product>
HEED_INLINE std::int64_t q_floats(const Sizes<Isa, Product>& z) {
    return larger(z.depth * most_rows, few_rows * z.key_stride);
}

/// Scratch of one worker, laid out in one piece of memory.
template <class Isa, class Product>
struct ForwardScratch {
    RowTile* tiles;
    float* q;        ///< [tiles_per_task][depth][64]
    float* sums;     ///< [tiles_per_task][64][value_stride]
    float* largest;  ///< [tiles_per_task][64]
    float* sum;      ///< [tiles_per_task][64]
    float* staging;  ///< [64][row_stride] query rows on their way to q
    float* now;      ///< [64]
    float* alpha;    ///< [64]
    bool* fresh;     ///< [tiles_per_task] nothing has been summed yet
    float* pairs;    ///< [keys/2][64] weights as pairs of bf16
    PackScratch pack;
    ScoreScratch score;

    static std::size_t layout(const Call& call, std::int64_t tiles, char* memory, ForwardScratch* to) {
        Arena arena{memory};
        ForwardScratch s{};
        const Sizes<Isa, Product> z(call);
        const auto count = static_cast<std::size_t>(tiles);
        s.tiles = arena.take<RowTile>(count);
        s.q = arena.take<float>(count * q_floats(z));
        s.sums = arena.take<float>(count * most_rows * z.value_stride);
        s.largest = arena.take<float>(count * most_rows);
        s.sum = arena.take<float>(count * most_rows);
        s.staging = arena.take<float>(most_rows * z.row_lanes);
        s.now = arena.take<float>(most_rows);
        s.alpha = arena.take<float>(most_rows);
        s.fresh = arena.take<bool>(count);
        s.pairs = arena.take<float>((z.keys + 1) / 2 * most_rows);
        s.pack = PackScratch::take(arena, z.keys * z.key_stride, z.keys * z.value_stride);
        s.score.scores = arena.take<float>((z.keys + 1) * most_rows);
        const bool dense = call.bias.data != nullptr || call.allow.data != nullptr || call.pattern;
        s.score.add = arena.take<float>(dense ? z.keys * most_rows : 0);
        s.score.rows = arena.take<float>(dense ? most_rows * round_up(z.keys, 16) : 0);
        s.score.positions = arena.take<std::int32_t>(z.keys);
        if (to != nullptr) { *to = s; }
        return arena.used;
    }
};

/// What a task leaves behind where keys are split: sums, largest and sum per row.
struct Partial {
    float* sums;     ///< [rows][value_stride]
    float* largest;  ///< [rows]
    float* sum;
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
        std::int64_t begin = key_end;
        std::int64_t end = key_begin;
        bool any_few = false;
        for (std::int64_t t = 0; t < tiles; ++t) {
            RowTile& tile = scratch.tiles[t];
            fill_rows(call, s, keys, split, b, g, first_tile + t, Isa::lanes, tile);
            pack_queries<Isa, Product>(call, tile, scratch.staging, scratch.q + t * q_floats(z));
            scratch.fresh[t] = true;
            for (int r = 0; r < most_rows; ++r) {
                scratch.largest[t * most_rows + r] = negative_infinity;
                scratch.sum[t * most_rows + r] = 0;
            }
            any_few = any_few || tile.rows <= few_rows;
            if (tile.visible) {
                begin = smaller<std::int64_t>(begin, tile.begin);
                end = larger<std::int64_t>(end, tile.end);
            }
        }
        begin = larger(begin, key_begin);
        begin -= (begin - key_begin) % call.tile_keys;
        end = smaller(end, key_end);
        const std::int64_t stride = pattern_blocks * call.tile_keys;
        for (std::int64_t j = begin; j < end; j += call.tile_keys) {
            if (call.pattern && (j - begin) % stride == 0) {
                bool sees = false;
                for (std::int64_t t = 0; t < tiles && !sees; ++t) {
                    sees = pattern_sees(call, keys, scratch.tiles[t], j, smaller(stride, end - j));
                }
                if (!sees) {
                    j += stride - call.tile_keys;
                    continue;
                }
            }
            KeyBlock block{.begin = j, .count = smaller(call.tile_keys, end - j)};
            fill_key_positions(call, s, keys, j, block.count, scratch.score.positions, block.least, block.most);
            block.positions = scratch.score.positions;
            bool packed = false;
            for (std::int64_t t = 0; t < tiles; ++t) {
                const RowTile& tile = scratch.tiles[t];
                if (tile.begin >= j + block.count || tile.end <= j) { continue; }
                PatternRun runs[most_runs];
                const int seen = call.pattern ? pattern_runs(call, s, keys, tile, j, block.count, runs) : 1;
                if (seen == 0) { continue; }
                if (!packed) {
                    const std::int64_t rest = smaller(call.tile_keys, end - j - block.count);
                    block.next_k = upcoming(call.k, s, g, j + block.count, rest, call.head_size);
                    block.next_v = upcoming(call.v, s, g, j + block.count, rest, call.value_size);
                    pack_keys<Isa, Product>(call, s, g, any_few, scratch.pack, block);
                    pack_values<Isa, Product>(call, s, g, scratch.pack, block);
                    packed = true;
                }
                with_lanes<Isa>(tile.lanes, [&]<int L>() {
                    if (!call.pattern) { step<L>(call, tile, keys, block, Cover::all, t, scratch); }
                    for (int n = 0; call.pattern && n < seen; ++n) {
                        KeyBlock part = block.template part<Product>(runs[n].begin, runs[n].end);
                        step<L>(call, tile, keys, part, runs[n].cover, t, scratch);
                    }
                });
            }
        }
        for (std::int64_t t = 0; t < tiles; ++t) {
            if (scratch.fresh[t]) { clear_sums(z, scratch, t); }
            if (partial == nullptr) {
                finish(call, scratch.tiles[t], scratch.sums + t * most_rows * z.value_stride,
                       scratch.largest + t * most_rows, scratch.sum + t * most_rows);
            } else {
                keep(scratch, t, partial[t], z.value_stride);
            }
        }
    }

    /// Merges the parts of one tile, in order, and writes its output.
    static void merge(const Call& call, const RowTile& tile, const Partial* parts, std::int64_t count) {
        const Sizes<Isa, Product> z(call);
        for (int r = 0; r < tile.rows; ++r) {
            float largest = negative_infinity;
            for (std::int64_t n = 0; n < count; ++n) {
                const float x = parts[n].largest[r];
                largest = x != x ? x : larger(largest, x);
            }
            float* sums = parts[0].sums + r * z.value_stride;
            float total = 0;
            for (std::int64_t n = 0; n < count; ++n) {
                const float x = parts[n].largest[r];
                const float weight = x == negative_infinity ? 0.0F : exp2f(x - largest);
                total += weight * parts[n].sum[r];
                const float* from = parts[n].sums + r * z.value_stride;
                if (n == 0) {
                    for (std::int64_t e = 0; e < z.value_stride; ++e) { sums[e] = weight * from[e]; }
                } else if (weight != 0) {
                    for (std::int64_t e = 0; e < z.value_stride; ++e) { sums[e] += weight * from[e]; }
                }
            }
            parts[0].largest[r] = largest;
            parts[0].sum[r] = total;
        }
        finish(call, tile, parts[0].sums, parts[0].largest, parts[0].sum);
    }

private:
    template <int L>
    static void step(const Call& call, const RowTile& tile, const Keys& keys, KeyBlock& block, Cover pattern,
                     std::int64_t t, const Scratch& scratch) {
        const Sizes<Isa, Product> z(call);
        float* scores = scratch.score.scores;
        const std::int64_t stride = tile.lanes * tile.vectors;
        float* sums = scratch.sums + t * most_rows * z.value_stride;
        const RowState state{scratch.largest + t * most_rows, scratch.sum + t * most_rows};
        const float* q = scratch.q + t * q_floats(z);
        __builtin_memcpy(scratch.now, state.largest, static_cast<std::size_t>(stride) * 4);
        Scored scored{};
        if (tile.rows > few_rows && is_plain(call, tile, block, pattern)) {
            scored = plain_scores<Isa, Product, L>(call, tile, block, q, z.depth, scores, scratch.now);
        } else {
            fetch_dense(call, tile, block);
            if (tile.rows <= few_rows) {
                few_row_scores<Isa, Product>(tile, block, q, z.key_stride, scores);
                // Memory would rest while the softmax runs: ask for the first values.
                if constexpr (Product::depth_per_lane == 1) {
                    const Upcoming values{reinterpret_cast<const char*>(block.v), block.v_stride * 4, block.count,
                                          z.value_stride / 16};
                    for (std::int64_t r = 0; r < 32; ++r) { values.fetch(r, 0, values.lines); }
                }
            } else {
                raw_scores<Isa, Product, L>(tile, block, q, z.depth, scores);
            }
            const bool dense = dense_add<Isa, L>(call, tile, keys, block, pattern, scratch.score);
            scored = adjust_scores<Isa, L>(call, tile, block, dense, scores, scratch.score.add, nullptr, scratch.now);
        }
        const bool careful = scored.partial && !values_finite<Isa, Product>(call, block);
        weigh<Isa, L>(tile, block, scored, careful, scores, scratch.now, state, scratch.alpha);
        if (call.drop || call.keep.data != nullptr) { drop<Isa, L>(call, tile, block, scores); }
        const Old old = scratch.fresh[t] ? Old::none : Old::scale;
        const bool few = tile.rows <= few_rows && tile.begin <= block.begin && tile.end >= block.begin + block.count;
        if (scratch.fresh[t] && (careful || few)) { clear_sums(z, scratch, t); }
        scratch.fresh[t] = false;
        if (careful) {
            careful_product<Isa, Product>(call, tile, block, scores, scratch.alpha, sums);
            return;
        }
        const float* weights = scores;
        if constexpr (Product::depth_per_lane == 2) {
            pair_weights<Isa, L>(tile, block, scores, scratch.pairs);
            weights = scratch.pairs;
        }
        if (few) {
            for (std::int64_t r = 0; r < 32; ++r) { block.next_k.fetch(r, 0, block.next_k.lines); }
            if constexpr (Product::depth_per_lane == 2) {
                for (std::int64_t r = 0; r < 32; ++r) { block.next_v.fetch(r, 0, block.next_v.lines); }
            }
            few_row_product<Isa, Product>(tile, block, weights, scratch.alpha, sums, z.value_stride);
            return;
        }
        const auto span = [&](std::int64_t m, int count) {
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
        matrix_add<Isa, Product, Isa::lanes, Walk::along_column>(
            weights, stride, block.v, block.v_stride, sums, z.value_stride, tile.rows,
            static_cast<int>(z.value_stride / Isa::lanes), old, scratch.alpha, span);
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

    /// Step 7's division, the sink, and the writing of out and lse.
    static void finish(const Call& call, const RowTile& tile, const float* sums, const float* largest,
                       const float* sum) {
        constexpr int L = Isa::lanes;
        using S = Simd<Isa, L>;
        const Sizes<Isa, Product> z(call);
        float factor[most_rows];
        if (call.sinks) {
            for (int r = 0; r < tile.rows; ++r) { factor[r] = with_sink(call, tile, r, largest[r], sum[r]).factor; }
        } else {
            for (int r = 0; r < tile.rows; ++r) {
                // A row whose every score is NaN has no largest either, but a sum that says so.
                factor[r] = largest[r] == negative_infinity && sum[r] == 0 ? 0.0F : call.kept / sum[r];
            }
        }
        const bool whole_vectors =
            call.out.dtype == DType::f32 && call.out.column == 1 && call.value_size == z.value_stride;
        for (int r = 0; r < tile.rows; ++r) {
            const std::int64_t at =
                tile.batch * call.out.b + tile.head[r] * call.out.h + (tile.query_begin + tile.index[r]) * call.out.row;
            char* to = call.out.data + at * call.out.element_size;
            const float* from = sums + r * z.value_stride;
            if (whole_vectors) {
                auto* out = reinterpret_cast<float*>(to);
                const F<L> scale = S::all(factor[r]);
                for (std::int64_t e = 0; e < z.value_stride; e += L) { S::store(out + e, S::load(from + e) * scale); }
            } else {
                store_row<Isa>(call.out.dtype, to, call.out.column, call.value_size, from, factor[r]);
            }
        }
        for (int r = 0; call.has_lse && r < tile.rows; ++r) {
            put_lse(call, tile, r, with_sink(call, tile, r, largest[r], sum[r]).lse);
        }
    }

    struct Normaliser {
        float factor;
        double lse;
    };

    static Normaliser with_sink(const Call& call, const RowTile& tile, int r, float largest, float sum) {
        constexpr double ln_2 = 0.69314718055994531;
        float top = largest;
        float total = sum;
        float weight = 1;
        if (call.sinks) {
            const double logit = sink_of(call, tile.head[r]);
            const auto sink = static_cast<float>(logit / ln_2);
            // A row that sees nothing but its sink has exactly the sink's logit.
            if (largest == negative_infinity && sum == 0) { return {0.0F, logit}; }
            top = largest != largest ? largest : larger(largest, sink);
            weight = largest == negative_infinity ? 0.0F : exp2f(largest - top);
            total = weight * total + exp2f(sink - top);
        }
        if (top == negative_infinity && total == 0) { return {0.0F, -__builtin_inf()}; }
        return {call.kept * weight / total, top * ln_2 + static_cast<double>(logf(total))};
    }
};

}  // namespace heed::cpu
