#pragma once
#include "cpu/attention/backward/gradients.h"
#include "cpu/attention/backward/large_scores.h"
#include "cpu/attention/backward/plan.h"
#include "cpu/attention/backward/sums.h"

/// The backward pass. For a tile of rows and a block of keys, with x, w as in the forward pass, all transposed
/// [key][row]:
///
///     w  = 2^(x - lse)                   scores again
///     dw = keep/(1-p) * dO V^T
///     dx = w (dw - delta),  delta = dO . O - dlse
///     dV += (keep/(1-p) w)^T dO,   dK += dx'^T Q,   dQ += dx' K,   dx' = scale dx (1 - tanh^2)

namespace heed::cpu {

/// Rows that the next tile needs; transposing them would jump from row to row.
class TilePrefetch : public LinePrefetch<4> {
public:
    HEED_INLINE void add(const Tensor4& from, const RowTile& tile, std::int64_t size) {
        const std::int64_t bytes = size * from.element_size;
        if (from.column != 1) { return; }
        if (is_run(tile)) {
            return add_run(row_address(from, tile, 0), from.row * from.element_size, bytes, tile.rows);
        }
        for (int r = 0; r < tile.rows; ++r) {
            const char* row = row_address(from, tile, r);
            for (std::int64_t at = 0; at < bytes; at += 64) { __builtin_prefetch(row + at, 0, 2); }
        }
    }
    /// Rows of `bytes`, `step` apart, where they follow each other.
    HEED_INLINE void add(const char* first, std::int64_t step, std::int64_t bytes, const RowTile& tile) {
        if (is_run(tile)) { add_run(first, step, bytes, tile.rows); }
    }

private:
    /// The rows of one head follow each other.
    static HEED_INLINE bool is_run(const RowTile& tile) { return tile.head[0] == tile.head[tile.rows - 1]; }
};

template <class Isa, class Product>
class Backward {
public:
    using Scratch = BackwardScratch<Isa, Product>;
    using Gradients = BackwardGradients<Isa, Product>;
    static constexpr bool pairs = Product::depth_per_lane == 2;

    struct Span {
        std::int64_t begin;
        std::int64_t end;
    };

    static void chunk(const Call& call, const BackwardPlan& plan, const BackwardTask& of, const DqPart& dq,
                      const Scratch& scratch) {
        const Keys keys = keys_of(call, of.s);
        const std::int64_t begin = of.n * of.split.chunk_keys;
        const std::int64_t end = smaller(of.s.keys, begin + of.split.chunk_keys);
        if (begin >= end && of.n > 0) { return; }
        for (std::int64_t at = begin; at < end || at == begin; at += of.split.super_keys) {
            const std::int64_t count = smaller(of.split.super_keys, end - at);
            KeyPanel panel{.begin = at, .count = count};
            pack_panel<Isa, Product>(call, of.s, of.g, scratch, panel);
            choose_sums_memory(call, of.s, of.g, scratch, panel);
            for (std::int64_t j = 0; j < count; j += pattern_keys) { scratch.filled[j / pattern_keys] = false; }
            const bool sinks = of.n == 0 && at == begin && call.sinks;
            TilePrefetch ahead;
            Progress progress{plan, of, keys, dq, panel, sinks, ahead};
            visit_tiles(call, progress, scratch);
            store_keys(call, of.s, of.g, panel, scratch);
        }
    }

    /// Rows of dq of query head h from its chunks' parts, in order. `sum` has room for a row.
    static void store_dq(const Call& call, const BackwardPlan& plan, const BackwardTask& of, std::int64_t h,
                         const Span& rows, const DqPart* parts, float* sum) {
        const Sequence& s = of.s;
        const BackwardSplit& split = of.split;
        const std::int64_t size = call.dq.element_size;
        const std::int64_t tiles = split.rows.tiles;
        const bool* dq_filled =
            plan.dq_filled + (delta_begin(call, plan, of.b) + h / call.group * tiles) * plan.most_chunks;
        for (std::int64_t i = rows.begin; i < rows.end; ++i) {
            const std::int64_t tile = tile_of_row(call, split.rows, h, i);
            const float* row = nullptr;
            for (std::int64_t n = 0; n < split.chunks; ++n) {
                if (!dq_filled[n * tiles + tile]) { continue; }
                const float* more = parts[n].data + h % call.group * parts[n].head + i * parts[n].row;
                if (row == nullptr) {
                    row = more;
                    continue;
                }
                if (row != sum) { __builtin_memcpy(sum, row, static_cast<std::size_t>(call.head_size) * 4); }
                for (std::int64_t c = 0; c < call.head_size; ++c) { sum[c] += more[c]; }
                row = sum;
            }
            if (row == nullptr) {
                __builtin_memset(sum, 0, static_cast<std::size_t>(call.head_size) * 4);
                row = sum;
            }
            const std::int64_t at = s.batch * call.dq.b + h * call.dq.h + (s.query_begin + i) * call.dq.row;
            if (reinterpret_cast<const char*>(row) == call.dq.data + at * size) { continue; }
            store_gradient<Isa>(call.dq, at, call.head_size, row, 1);
        }
    }

private:
    /// What the tiles that meet a panel of keys share.
    struct Progress {
        const BackwardPlan& plan;
        const BackwardTask& of;
        const Keys& keys;
        const DqPart& dq;
        KeyPanel& panel;
        bool sinks;  ///< theirs are added here
        TilePrefetch& ahead;
    };

    /// The next tile that has something to do, from number t on, and its rows prefetched.
    static void find(const Call& call, Progress& p, const DeltaSlot* deltas, std::int64_t t, TileVisit& visit) {
        const std::int64_t tiles = p.of.split.rows.tiles;
        for (; t < tiles; ++t) {
            fill_rows(call, {p.of.s, p.keys, p.of.b, p.of.g}, p.of.split.rows, t, Isa::lanes, visit.tile);
            meet(call, p.of.s, p.keys, p.panel.begin, p.panel.count, visit);
            if (visit.count > 0 || p.sinks) { break; }
        }
        visit.number = t;
        if (t == tiles) { return; }
        p.ahead.add(call.q, visit.tile, call.head_size);
        p.ahead.add(call.dout, visit.tile, call.value_size);
        if (!deltas[t].is_ready()) { p.ahead.add(call.out, visit.tile, call.value_size); }
        p.ahead.add(reinterpret_cast<const char*>(dq_row(call, p.of.g, visit.tile, 0, p.dq)), p.dq.row * 4,
                    call.head_size * 4, visit.tile);
    }

    static void visit_tiles(const Call& call, Progress& p, const Scratch& scratch) {
        const std::int64_t tiles = p.of.split.rows.tiles;
        const std::int64_t first_tile = delta_begin(call, p.plan, p.of.b) + p.of.g * tiles;
        DeltaSlot* deltas = p.plan.deltas + first_tile;
        bool* dq_filled = p.plan.dq_filled + first_tile * p.plan.most_chunks + p.of.n * tiles;
        TileVisit* now = scratch.visits;
        TileVisit* next = scratch.visits + 1;
        for (find(call, p, deltas, 0, *now); now->number < tiles;) {
            p.ahead.rest();
            pack_rows<Isa, Product>(call, now->tile, deltas[now->number], scratch);
            *scratch.has_large_lse = has_large_lse(now->tile, scratch.lse);
            if (*scratch.has_large_lse) { renew_large_lse(call, p, now->tile, scratch); }
            find(call, p, deltas, now->number + 1, *next);
            if (p.sinks) { add_sinks(call, p.plan, p.of.b, now->tile, scratch); }
            if (now->count > 0) { visit_tile(call, p, *now, dq_filled[now->number], scratch); }
            TileVisit* done = now;
            now = next;
            next = done;
        }
    }

    static void visit_tile(const Call& call, Progress& p, const TileVisit& visit, bool& dq_filled,
                           const Scratch& scratch) {
        const BackwardSizes<Isa, Product> z(call);
        const RowTile& tile = visit.tile;
        // This chunk's part of dq is made of the tiles: the first keys they meet set it.
        const Old old_dq = dq_filled ? Old::keep : Old::none;
        dq_filled = true;
        // Directly into dq where the tile's rows follow each other there, as those of one head do.
        const bool direct = call.head_size == z.head_stride && tile.head[0] == tile.head[tile.rows - 1];
        RowSums sums{scratch.dq_tile, z.head_stride, Old::none};
        if (direct) { sums = {dq_row(call, p.of.g, tile, 0, p.dq), p.dq.row, old_dq}; }
        with_lanes<Isa>(tile.lanes, [&]<int L>() {
            for (int r = 0; r < visit.count; ++r) { step<L>(call, p, tile, visit.runs[r], sums, scratch); }
        });
        const bool nothing = sums.old == Old::none;
        if (!direct || nothing) {
            put_dq<Isa, Product>(call, p.of.g, tile, nothing ? nullptr : scratch.dq_tile, old_dq, p.dq);
        }
    }

    /// The lse of the tile's rows, where it is large, from all keys; then the panel's own are made ready again.
    static void renew_large_lse(const Call& call, Progress& p, const RowTile& tile, const Scratch& scratch) {
        const BackwardSplit& split = p.of.split;
        LargestAndSum<Isa> rows;
        TileVisit& visit = scratch.visits[2];
        visit.tile = tile;
        for (std::int64_t n = 0; n < split.chunks; ++n) {
            const std::int64_t end = smaller(p.of.s.keys, (n + 1) * split.chunk_keys);
            for (std::int64_t at = n * split.chunk_keys; at < end; at += split.super_keys) {
                KeyPanel panel{.begin = at, .count = smaller(split.super_keys, end - at)};
                pack_panel<Isa, Product>(call, p.of.s, p.of.g, scratch, panel);
                meet(call, p.of.s, p.keys, panel.begin, panel.count, visit);
                with_lanes<Isa>(tile.lanes, [&]<int L>() {
                    for (int r = 0; r < visit.count; ++r) {
                        const KeyBlock block = block_of(call, p, panel, visit.runs[r], scratch);
                        if (tile.begin >= block.begin + block.count || tile.end <= block.begin) { continue; }
                        float raised[most_rows];
                        __builtin_memcpy(raised, rows.largest, sizeof(raised));
                        const Scored scored = Gradients::template scores<L>(call, tile, p.keys, block,
                                                                            visit.runs[r].cover, raised, scratch);
                        rows.template add<L>(tile, block, scored, scratch.score.scores, raised);
                    }
                });
            }
        }
        pack_panel<Isa, Product>(call, p.of.s, p.of.g, scratch, p.panel);
        rows.replace(call, tile, scratch.lse, scratch.lse_rest);
    }

    /// A run of a panel's keys, ready for the products.
    static KeyBlock block_of(const Call& call, const Progress& p, const KeyPanel& panel, const PatternRun& run,
                             const Scratch& scratch) {
        KeyBlock block{.begin = panel.begin + run.begin, .count = run.end - run.begin};
        fill_key_positions(call, p.of.s, p.keys, block.begin, block.count, scratch.score.positions, block.least,
                           block.most);
        block.positions = scratch.score.positions;
        block.k = panel.k + run.begin * panel.k_stride;
        block.k_stride = panel.k_stride;
        return block;
    }

    /// What the tile sees of keys [begin, begin + count), in runs that a step can take.
    static void meet(const Call& call, const Sequence& s, const Keys& keys, std::int64_t begin, std::int64_t count,
                     TileVisit& visit) {
        const RowTile& tile = visit.tile;
        visit.count = 0;
        if (!tile.visible || tile.begin >= begin + count || tile.end <= begin) { return; }
        if (call.pattern && !pattern_sees(call, keys, tile, begin, count)) { return; }
        for (std::int64_t j = 0; j < count; j += call.tile_keys) {
            PatternRun* runs = visit.runs + visit.count;
            const std::int64_t size = smaller(call.tile_keys, count - j);
            runs[0] = {0, size, Cover::all};
            const int more = call.pattern ? pattern_runs(call, s, keys, tile, begin + j, size, runs) : 1;
            for (int r = 0; r < more; ++r) {
                runs[r].begin += j;
                runs[r].end += j;
            }
            visit.count += more;
        }
    }

    /// The sink's share of the softmax: dsink = -sum_i w_sink delta.
    static void add_sinks(const Call& call, const BackwardPlan& plan, std::int64_t b, const RowTile& tile,
                          const Scratch& scratch) {
        for (int r = 0; r < tile.rows; ++r) {
            double sink = sink_of(call, tile.head[r]) * std::numbers::log2e;
            // Of large scores the lse was made of floats.
            if (is_large_lse(scratch.lse[r])) { sink = static_cast<double>(static_cast<float>(sink)); }
            const double share =
                exp2(sink - static_cast<double>(scratch.lse[r]) - static_cast<double>(scratch.lse_rest[r]));
            plan.sink_parts[(b - plan.first_entry) * call.heads + tile.head[r]] -=
                share * static_cast<double>(scratch.delta[r]);
        }
    }

    /// A tile against one run of keys of the panel.
    template <int L>
    static void step(const Call& call, Progress& p, const RowTile& tile, const PatternRun& run, RowSums& sums,
                     const Scratch& scratch) {
        const BackwardSizes<Isa, Product> z(call);
        KeyPanel& panel = p.panel;
        const std::int64_t offset = run.begin;
        if (tile.begin >= panel.begin + run.end || tile.end <= panel.begin + offset) { return; }
        const KeyBlock block = block_of(call, p, panel, run, scratch);
        const std::int64_t stride = tile.lanes * tile.vectors;
        std::int64_t seen_begin = 0;
        std::int64_t seen_end = 0;
        seen_keys(tile, block, seen_begin, seen_end);
        bool nan_safe = false;
        const bool in_pairs =
            Gradients::template of_block<L>(call, tile, p.keys, block, run.cover, panel, nan_safe, scratch);
        if (call.problem->gradients.dbias) { spill_dbias<L>(call, tile, block, scratch); }
        if (call.problem->gradients.dalibi_slopes) { add_slopes<L>(call, p, tile, block, scratch); }
        if (Gradients::scales_late(call)) { Gradients::template scale_dx<L>(call, tile, block, scratch); }
        const Old old_keys = begin_keys(panel, offset + seen_begin, offset + seen_end, nan_safe, z, scratch);
        if (nan_safe) {
            nan_safe_products<Isa, Product>(call, tile, block, panel, offset, sums, scratch);
            return;
        }

        // Rows that see keys m .. m+count, and keys that rows m .. m+count see.
        constexpr int d = Product::depth_per_lane;
        const auto rows_of = [&](std::int64_t m, int size) {
            int first = 0;
            int last = 0;
            vectors_seeing(tile, block.begin + m, block.begin + m + size, first, last);
            const std::int64_t to = smaller<std::int64_t>(last * L, tile.rows);
            return first < last ? Span{first * L / d, (to + d - 1) / d} : Span{0, 0};
        };
        const auto keys_of_rows = [&](std::int64_t m, int size) {
            std::int64_t from = block.count;
            std::int64_t to = 0;
            for (std::int64_t v = m / L; v <= (m + size - 1) / L; ++v) {
                const std::int64_t vector_begin = larger<std::int64_t>(tile.some_begin[v] - block.begin, 0);
                const std::int64_t vector_end = smaller<std::int64_t>(tile.some_end[v] - block.begin, block.count);
                if (vector_begin < vector_end) {
                    from = smaller(from, vector_begin);
                    to = larger(to, vector_end);
                }
            }
            return Span{from / d, (to + d - 1) / d};
        };
        const float* w = scratch.score.scores;
        const float* dx = scratch.dw;
        const float* dx_by_key = scratch.dw;
        std::int64_t w_stride = stride;
        if constexpr (pairs) {
            if (!in_pairs) {
                Gradients::clear_odd_row(tile, seen_begin, seen_end, scratch);
                pair_rows<Isa, L>(tile, seen_begin, seen_end, w, scratch.w_pairs);
                pair_rows<Isa, L>(tile, seen_begin, seen_end, dx, scratch.dx_pairs);
                pair_weights<Isa, L>(tile, block, dx, scratch.dx_key_pairs);
            }
            w = scratch.w_pairs;
            dx = scratch.dx_pairs;
            dx_by_key = scratch.dx_key_pairs;
            w_stride = stride / 2;
        }
        constexpr int lanes = Isa::lanes;
        const auto shifted = [&](std::int64_t m, int size) { return rows_of(seen_begin + m, size); };
        matrix_add<Isa, Product, lanes, Walk::along_row>(
            w + seen_begin * w_stride, w_stride, scratch.dout_rows->data, scratch.dout_rows->stride,
            panel.dv + (offset + seen_begin) * panel.dv_stride, panel.dv_stride, seen_end - seen_begin,
            static_cast<int>(z.value_stride / lanes), old_keys, nullptr, shifted, p.ahead);
        matrix_add<Isa, Product, lanes, Walk::along_row>(
            dx + seen_begin * w_stride, w_stride, scratch.q_rows->data, scratch.q_rows->stride,
            panel.dk + (offset + seen_begin) * panel.dk_stride, panel.dk_stride, seen_end - seen_begin,
            static_cast<int>(z.head_stride / lanes), old_keys, nullptr, shifted, p.ahead);
        matrix_add<Isa, Product, lanes, Walk::along_column>(
            dx_by_key, stride, panel.k_rows + offset / d * panel.k_rows_stride, panel.k_rows_stride, sums.data,
            sums.stride, tile.rows, static_cast<int>(z.head_stride / lanes), sums.old, nullptr, keys_of_rows, p.ahead);
        sums.old = Old::keep;
    }

    template <int L>
    static void spill_dbias(const Call& call, const RowTile& tile, const KeyBlock& block, const Scratch& scratch) {
        std::int64_t begin = 0;
        std::int64_t end = 0;
        seen_keys(tile, block, begin, end);
        const std::int64_t stride = tile.lanes * tile.vectors;
        const std::int64_t pitch = round_up(call.tile_keys, 16);
        transpose_rows<Isa, L>([&](std::int64_t j) { return scratch.dw + (begin + j) * stride; }, end - begin,
                               tile.rows, scratch.score.rows, pitch);
        for (int r = 0; r < tile.rows; ++r) {
            add_dbias(call, tile, r, block.begin + begin, end - begin, scratch.score.rows + r * pitch);
        }
    }

    template <int L>
    static void add_slopes(const Call& call, const Progress& p, const RowTile& tile, const KeyBlock& block,
                           const Scratch& scratch) {
        std::int64_t begin = 0;
        std::int64_t end = 0;
        seen_keys(tile, block, begin, end);
        const std::int64_t stride = tile.lanes * tile.vectors;
        for (int r = 0; r < tile.rows; ++r) {
            double sum = 0;
            for (std::int64_t j = begin; j < end; ++j) {
                const auto away = static_cast<double>(tile.position[r] - block.positions[j]);
                sum -= static_cast<double>(scratch.dw[j * stride + r]) * (away < 0 ? -away : away);
            }
            const std::int64_t head = (p.of.b - p.plan.first_entry) * call.heads + tile.head[r];
            p.plan.slope_parts[head * p.plan.most_chunks + p.of.n] += sum;
        }
    }
};

}  // namespace heed::cpu
