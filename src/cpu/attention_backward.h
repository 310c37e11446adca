#pragma once
#include "cpu/attention_backward_plan.h"
#include "cpu/attention_backward_sums.h"
#include "cpu/attention_softmax.h"

/// The backward pass. For a tile of rows and a block of keys, with x, w as in the forward pass, all transposed
/// [key][row]:
///
///     w  = 2^(x - lse)                   scores again
///     dw = keep/(1-p) * dO V^T
///     dx = w (dw - delta),  delta = dO . O - dlse
///     dV += (keep/(1-p) w)^T dO,   dK += scale dx'^T Q,   dQ += scale dx' K,   dx' = dx * (1 - tanh^2)

namespace heed::cpu {

template <class Isa, class Product>
class Backward {
public:
    using Scratch = BackwardScratch<Isa, Product>;
    static constexpr bool pairs = Product::depth_per_lane == 2;

    /// Keys of one chunk against all rows of the group's heads.
    static void chunk(const Call& call, const BackwardPlan& plan, const Sequence& s, const BackwardSplit& split,
                      std::int64_t b, std::int64_t g, std::int64_t n, float* dq, const Scratch& scratch) {
        const BackwardSizes<Isa, Product> z(call);
        const Keys keys = keys_of(call, s);
        const std::int64_t begin = n * split.chunk_keys;
        const std::int64_t end = smaller(s.keys, begin + split.chunk_keys);
        const std::int64_t tiles = split.rows.tiles;
        if (begin >= end && n > 0) { return; }
        DeltaSlot* deltas = plan.deltas + delta_begin(call, plan, b) + g * tiles;
        __builtin_memset(scratch.met, 0, static_cast<std::size_t>(tiles));
        for (std::int64_t at = begin; at < end || at == begin; at += split.super_keys) {
            const std::int64_t count = smaller(split.super_keys, end - at);
            KeyPanel panel{.begin = at, .count = count};
            pack_panel<Isa, Product>(call, s, g, scratch, panel);
            for (std::int64_t j = 0; j < count; j += pattern_keys) { scratch.begun[j / pattern_keys] = false; }
            const bool sinks = n == 0 && at == begin && call.sinks;
            // The next tile that has something to do, from number t on.
            const auto find = [&](std::int64_t t, Meeting& meeting) {
                for (; t < tiles; ++t) {
                    fill_rows(call, s, keys, split.rows, b, g, t, Isa::lanes, meeting.tile);
                    meet(call, s, keys, at, count, meeting);
                    if (meeting.count > 0 || sinks) { break; }
                }
                meeting.number = t;
            };
            Meeting* now = scratch.meetings;
            Meeting* next = scratch.meetings + 1;
            for (find(0, *now); now->number < tiles;) {
                const RowTile& tile = now->tile;
                pack_rows<Isa, Product>(call, tile, deltas[now->number], scratch);
                find(now->number + 1, *next);
                if (next->number < tiles) {  // asked for now, they arrive while this tile is computed
                    fetch_rows(call.q, next->tile, call.head_size);
                    fetch_rows(call.dout, next->tile, call.value_size);
                    if (!deltas[next->number].is_ready()) { fetch_rows(call.out, next->tile, call.value_size); }
                }
                if (sinks) { add_sinks(call, plan, b, tile, scratch); }
                if (now->count > 0) {
                    // dq of this chunk, [group][queries][head_size], is made of the tiles: the first keys they meet
                    // set it.
                    const Old old_dq = scratch.met[now->number] ? Old::keep : Old::none;
                    scratch.met[now->number] = true;
                    // Straight into dq where the tile's rows follow each other there, as those of one head do.
                    const bool straight = call.head_size == z.head_stride && tile.head[0] == tile.head[tile.rows - 1];
                    RowSums sums{scratch.dq_tile, z.head_stride, Old::none};
                    if (straight) { sums = {dq_row(call, s, g, tile, 0, dq), call.head_size, old_dq}; }
                    with_lanes<Isa>(tile.lanes, [&]<int L>() {
                        for (int r = 0; r < now->count; ++r) {
                            const PatternRun& run = now->runs[r];
                            begin_keys(call, count, run.begin, run.end, scratch);
                            step<L>(call, plan, s, keys, b, n, tile, panel, run.begin, run.end - run.begin, run.cover,
                                    sums, scratch);
                        }
                    });
                    const bool nothing = sums.old == Old::none;
                    if (!straight || nothing) {
                        put_dq<Isa, Product>(call, s, g, tile, nothing ? nullptr : scratch.dq_tile, old_dq, dq);
                    }
                }
                Meeting* done = now;
                now = next;
                next = done;
            }
            store_keys(call, s, g, at, count, scratch);
        }
        for (std::int64_t t = 0; t < tiles; ++t) {
            if (scratch.met[t]) { continue; }
            RowTile& tile = scratch.meetings->tile;
            fill_rows(call, s, keys, split.rows, b, g, t, Isa::lanes, tile);
            put_dq<Isa, Product>(call, s, g, tile, nullptr, Old::none, dq);
        }
    }

    /// dq rows of one head from its chunks' parts, in order. part(n) is the n-th chunk's [queries][head_size].
    template <class Part>
    static void store_dq(const Call& call, const Sequence& s, std::int64_t h, std::int64_t begin, std::int64_t end,
                         std::int64_t chunks, Part part, float* sum) {
        const std::int64_t size = element_bytes(call.dq.dtype);
        for (std::int64_t i = begin; i < end; ++i) {
            const float* row = part(0) + i * call.head_size;
            if (chunks > 1) {
                __builtin_memcpy(sum, row, static_cast<std::size_t>(call.head_size) * 4);
                for (std::int64_t n = 1; n < chunks; ++n) {
                    const float* more = part(n) + i * call.head_size;
                    for (std::int64_t c = 0; c < call.head_size; ++c) { sum[c] += more[c]; }
                }
                row = sum;
            }
            const std::int64_t at = s.batch * call.dq.b + h * call.dq.h + (s.query_begin + i) * call.dq.row;
            store_row<Isa>(call.dq.dtype, call.dq.data + at * size, call.dq.column, call.head_size, row,
                           static_cast<float>(call.scale));
        }
    }

private:
    struct Span {
        std::int64_t begin;
        std::int64_t end;
    };

    /// What the tile sees of keys [begin, begin + count), in runs that a step can take.
    static void meet(const Call& call, const Sequence& s, const Keys& keys, std::int64_t begin, std::int64_t count,
                     Meeting& meeting) {
        const RowTile& tile = meeting.tile;
        meeting.count = 0;
        if (!tile.visible || tile.begin >= begin + count || tile.end <= begin) { return; }
        if (call.pattern && !pattern_sees(call, keys, tile, begin, count)) { return; }
        for (std::int64_t j = 0; j < count; j += call.tile_keys) {
            PatternRun* runs = meeting.runs + meeting.count;
            const std::int64_t size = smaller(call.tile_keys, count - j);
            runs[0] = {0, size, Cover::all};
            const int more = call.pattern ? pattern_runs(call, s, keys, tile, begin + j, size, runs) : 1;
            for (int r = 0; r < more; ++r) {
                runs[r].begin += j;
                runs[r].end += j;
            }
            meeting.count += more;
        }
    }

    /// The sink's share of the softmax: dsink = -sum_i w_sink delta.
    static void add_sinks(const Call& call, const BackwardPlan& plan, std::int64_t b, const RowTile& tile,
                          const Scratch& scratch) {
        constexpr double log2_e = 1.4426950408889634;
        for (int r = 0; r < tile.rows; ++r) {
            const double sink = sink_of(call, tile.head[r]) * log2_e;
            const double share =
                exp2(sink - static_cast<double>(scratch.lse[r]) - static_cast<double>(scratch.lse_rest[r]));
            plan.sink_parts[(b - plan.first_entry) * call.heads + tile.head[r]] -=
                share * static_cast<double>(scratch.delta[r]);
        }
    }

    template <int L>
    static void step(const Call& call, const BackwardPlan& plan, const Sequence& s, const Keys& keys, std::int64_t b,
                     std::int64_t n, const RowTile& tile, KeyPanel& panel, std::int64_t offset, std::int64_t count,
                     Cover pattern, RowSums& sums, const Scratch& scratch) {
        const BackwardSizes<Isa, Product> z(call);
        KeyBlock block{.begin = panel.begin + offset, .count = count};
        if (tile.begin >= block.begin + count || tile.end <= block.begin) { return; }
        fill_key_positions(call, s, keys, block.begin, count, scratch.score.positions, block.least, block.most);
        block.positions = scratch.score.positions;
        const std::int64_t stride = tile.lanes * tile.vectors;

        block.k = panel.k + offset * panel.k_stride;
        block.k_stride = panel.k_stride;
        for (int r = 0; r < most_rows; ++r) { scratch.largest[r] = negative_infinity; }
        BiasRows bias_rows;
        if (call.bias.data != nullptr || call.allow.data != nullptr) {
            bias_rows.fill(call, tile);
            NextBias{&bias_rows, tile.rows, block.begin, block.begin + count}.ahead(call).rest();
        }
        const Scored scored =
            score_block<Isa, Product, L>(call, tile, keys, block, pattern, bias_rows, {}, scratch.q_columns,
                                         z.score_depth, scratch.score, scratch.cap_slope, scratch.largest);
        KeyBlock values = block;
        values.k = panel.v + offset * panel.v_stride;
        values.k_stride = panel.v_stride;
        raw_scores<Isa, Product, L>(tile, values, scratch.dout_columns, z.value_depth, scratch.dw);
        const bool dropping = call.drop || call.keep.data != nullptr;
        if (dropping) { drop_dw<L>(call, tile, block, scratch); }
        const bool careful = scored.partial && !(rows_finite<Isa, Product>(tile, call.head_size, *scratch.q_rows) &&
                                                 rows_finite<Isa, Product>(tile, call.value_size, *scratch.dout_rows) &&
                                                 keys_finite<Isa, Product>(call, panel));
        differentiate<L>(call, tile, block, scored, careful, dropping, scratch);
        if (call.problem->gradients.dbias) { spill_dbias<L>(call, tile, block, scratch); }
        if (call.problem->gradients.dalibi_slopes) { add_slopes<L>(call, plan, b, n, tile, block, scratch); }
        if (call.cap > 0) { apply_cap<L>(tile, block, scratch); }
        if (careful) {
            careful_products<Isa, Product>(call, tile, block, panel, offset, sums, scratch);
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
        std::int64_t seen_begin = 0;
        std::int64_t seen_end = 0;
        seen_keys(tile, block, seen_begin, seen_end);
        const float* w = scratch.score.scores;
        const float* dx = scratch.dw;
        const float* dx_by_key = scratch.dw;
        std::int64_t w_stride = stride;
        if constexpr (pairs) {
            clear_odd_row(tile, seen_begin, seen_end, scratch);
            pair_rows<Isa, L>(tile, seen_begin, seen_end, w, scratch.w_pairs);
            pair_rows<Isa, L>(tile, seen_begin, seen_end, dx, scratch.dx_pairs);
            pair_weights<Isa, L>(tile, block, dx, scratch.dx_key_pairs);
            w = scratch.w_pairs;
            dx = scratch.dx_pairs;
            dx_by_key = scratch.dx_key_pairs;
            w_stride = stride / 2;
        }
        constexpr int lanes = Isa::lanes;
        const auto shifted = [&](std::int64_t m, int size) { return rows_of(seen_begin + m, size); };
        matrix_add<Isa, Product, lanes, Walk::along_row>(
            w + seen_begin * w_stride, w_stride, scratch.dout_rows->data, scratch.dout_rows->stride,
            scratch.dv + (offset + seen_begin) * z.value_stride, z.value_stride, seen_end - seen_begin,
            static_cast<int>(z.value_stride / lanes), Old::keep, nullptr, shifted);
        matrix_add<Isa, Product, lanes, Walk::along_row>(
            dx + seen_begin * w_stride, w_stride, scratch.q_rows->data, scratch.q_rows->stride,
            scratch.dk + (offset + seen_begin) * z.head_stride, z.head_stride, seen_end - seen_begin,
            static_cast<int>(z.head_stride / lanes), Old::keep, nullptr, shifted);
        matrix_add<Isa, Product, lanes, Walk::along_column>(
            dx_by_key, stride, panel.k_rows + offset / d * panel.k_rows_stride, panel.k_rows_stride, sums.data,
            sums.stride, tile.rows, static_cast<int>(z.head_stride / lanes), sums.old, nullptr, keys_of_rows);
        sums.old = Old::keep;
    }

    /// The partner of an odd last row: it must not bring a NaN of V along.
    static void clear_odd_row(const RowTile& tile, std::int64_t begin, std::int64_t end, const Scratch& scratch) {
        const std::int64_t stride = tile.lanes * tile.vectors;
        for (std::int64_t j = begin; tile.rows % 2 != 0 && j < end; ++j) {
            scratch.score.scores[j * stride + tile.rows] = 0;
            scratch.dw[j * stride + tile.rows] = 0;
        }
    }

    /// dw *= keep/(1-p); kept = 1 or 0.
    template <int L>
    static void drop_dw(const Call& call, const RowTile& tile, const KeyBlock& block, const Scratch& scratch) {
        using S = Simd<Isa, L>;
        const std::int64_t stride = tile.lanes * tile.vectors;
        for_each_dropout<Isa, L>(call, tile, block, [&](std::int64_t j, int n, I<L> keep) {
            const std::int64_t at = j * stride + n * L;
            S::store(scratch.kept + at, keep ? S::all(1.0F) : F<L>{});
            S::store(scratch.dw + at, S::load(scratch.dw + at) * (keep ? S::all(call.kept) : F<L>{}));
        });
    }

    /// scores -> weights (dropped ones 0), dw -> dx.
    template <int L>
    static void differentiate(const Call&, const RowTile& tile, const KeyBlock& block, const Scored& scored,
                              bool careful, bool dropping, const Scratch& scratch) {
        using S = Simd<Isa, L>;
        const std::int64_t stride = tile.lanes * tile.vectors;
        std::int64_t seen_begin = 0;
        std::int64_t seen_end = 0;
        seen_keys(tile, block, seen_begin, seen_end);
        const F<L> hidden = S::all(negative_infinity);
        const F<L> nothing = S::all(careful ? hidden_weight : 0.0F);
        const F<L> factor = S::all(scored.factor);
        float* scores = scratch.score.scores;
        for (int n = 0; n < tile.vectors; ++n) {
            const std::int64_t begin = larger<std::int64_t>(tile.some_begin[n] - block.begin, 0);
            const std::int64_t end = smaller<std::int64_t>(tile.some_end[n] - block.begin, block.count);
            const F<L> lse = S::load(scratch.lse + n * L);
            const F<L> rest = S::load(scratch.lse_rest + n * L);
            const F<L> delta = S::load(scratch.delta + n * L);
            const auto fill = [&](std::int64_t from, std::int64_t to) {
                for (std::int64_t j = from; j < to; ++j) {
                    S::store(scores + j * stride + n * L, nothing);
                    S::store(scratch.dw + j * stride + n * L, F<L>{});
                }
            };
            fill(seen_begin, smaller(begin, seen_end));
            const auto run = [&]<bool Partial>() {
                for (std::int64_t j = begin; j < end; ++j) {
                    const std::int64_t at = j * stride + n * L;
                    const F<L> x = S::load(scores + at);
                    F<L> w = S::exp2((S::rounded(x * factor) - lse) - rest);
                    F<L> dx = w * (S::load(scratch.dw + at) - delta);
                    if (dropping) { w *= S::load(scratch.kept + at); }
                    if constexpr (Partial) {
                        w = x == hidden ? nothing : w;
                        dx = x == hidden ? F<L>{} : dx;
                    }
                    S::store(scores + at, w);
                    S::store(scratch.dw + at, dx);
                }
            };
            if (scored.partial) {
                run.template operator()<true>();
            } else {
                run.template operator()<false>();
            }
            fill(larger(begin, larger(end, seen_begin)), seen_end);
        }
    }

    template <int L>
    static void apply_cap(const RowTile& tile, const KeyBlock& block, const Scratch& scratch) {
        using S = Simd<Isa, L>;
        const std::int64_t stride = tile.lanes * tile.vectors;
        for (int n = 0; n < tile.vectors; ++n) {
            const std::int64_t begin = larger<std::int64_t>(tile.some_begin[n] - block.begin, 0);
            const std::int64_t end = smaller<std::int64_t>(tile.some_end[n] - block.begin, block.count);
            for (std::int64_t j = begin; j < end; ++j) {
                const std::int64_t at = j * stride + n * L;
                const F<L> dx = S::load(scratch.dw + at);
                // A hidden score may have no finite slope; its dx is 0.
                S::store(scratch.dw + at, dx == F<L>{} ? dx : dx * S::load(scratch.cap_slope + at));
            }
        }
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
    static void add_slopes(const Call& call, const BackwardPlan& plan, std::int64_t b, std::int64_t chunk,
                           const RowTile& tile, const KeyBlock& block, const Scratch& scratch) {
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
            plan.slope_parts[((b - plan.first_entry) * call.heads + tile.head[r]) * plan.most_chunks + chunk] += sum;
        }
    }
};

}  // namespace heed::cpu
