#pragma once
#include "cpu/attention/backward/pairs.h"

/// The weights of a tile and the gradients of its scores.

namespace heed::cpu {

template <class Isa, class Product>
class BackwardGradients {
public:
    using Scratch = BackwardScratch<Isa, Product>;

    /// The weights and the scores' gradients of a block: [key][row] in scores and dw, or in pairs, where that is true.
    template <int L>
    static bool of_block(const Call& call, const RowTile& tile, const Keys& keys, const KeyBlock& block, Cover pattern,
                         KeyPanel& panel, bool& nan_safe, const Scratch& scratch) {
        const BackwardSizes<Isa, Product> z(call);
        const std::int64_t offset = block.begin - panel.begin;
        KeyBlock values = block;
        values.k = panel.v + offset * panel.v_stride;
        values.k_stride = panel.v_stride;
        const bool dropping = call.drop || call.keep.data != nullptr;
        constexpr bool can_pair = pairs && L == Isa::lanes;
        const bool to_pairs = !scales_late(call) && !*scratch.has_large_lse;
        if constexpr (can_pair) {
            if (!dropping && to_pairs && is_plain(call, tile, block, pattern)) {
                plain_pairs<L>(call, tile, block, values, scratch);
                return true;
            }
        }
        for (int r = 0; r < most_rows; ++r) { scratch.largest[r] = negative_infinity; }
        const Scored scored = scores<L>(call, tile, keys, block, pattern, scratch.largest, scratch);
        raw_scores<Isa, Product, L>(tile, values, scratch.dout_columns, z.value_depth, scratch.dw);
        if (dropping) { drop_dw<L>(call, tile, block, scratch); }
        nan_safe = scored.partial && !(rows_finite<Isa, Product>(tile, call.head_size, *scratch.q_rows) &&
                                       rows_finite<Isa, Product>(tile, call.value_size, *scratch.dout_rows) &&
                                       keys_finite<Isa, Product>(call, panel));
        if constexpr (can_pair) {
            if (!nan_safe && to_pairs) {
                std::int64_t begin = 0;
                std::int64_t end = 0;
                seen_keys(tile, block, begin, end);
                const PairGradients<Isa, Product> pair(tile, block, scored.factor, call.scale, scratch, 0);
                if (dropping) {
                    scored.partial ? pair.template keys<true, true>(begin / 2 * 2, end)
                                   : pair.template keys<false, true>(begin / 2 * 2, end);
                } else {
                    scored.partial ? pair.template keys<true, false>(begin / 2 * 2, end)
                                   : pair.template keys<false, false>(begin / 2 * 2, end);
                }
                return true;
            }
        }
        differentiate<L>(call, tile, block, scored, nan_safe, dropping, scratch);
        return false;
    }

    /// The scores of a block as the weights are made of them; largest[row] is raised.
    template <int L>
    static Scored scores(const Call& call, const RowTile& tile, const Keys& keys, const KeyBlock& block, Cover pattern,
                         float* largest, const Scratch& scratch) {
        const BackwardSizes<Isa, Product> z(call);
        BiasRows bias_rows;
        if (call.bias.data != nullptr || call.allow.data != nullptr) {
            bias_rows.fill(call, tile);
            NextBias{&bias_rows, tile.rows, block.begin, block.begin + block.count}.ahead(call).rest();
        }
        return score_block<Isa, Product, L>(
            call, tile, keys, block, pattern,
            {bias_rows, {}, scratch.q_columns, z.score_depth, scratch.cap_slope, largest}, scratch.score);
    }

    /// The scale is the last factor of dx. It comes with differentiate() where nothing stands between.
    static HEED_INLINE bool scales_late(const Call& call) { return call.cap > 0 || call.dx_wanted; }

    /// dx' = scale * dx * (1 - tanh^2)
    template <int L>
    static void scale_dx(const Call& call, const RowTile& tile, const KeyBlock& block, const Scratch& scratch) {
        using S = Simd<Isa, L>;
        const std::int64_t stride = tile.lanes * tile.vectors;
        const F<L> scale = S::all(call.scale);
        for (int n = 0; n < tile.vectors; ++n) {
            const std::int64_t begin = larger<std::int64_t>(tile.some_begin[n] - block.begin, 0);
            const std::int64_t end = smaller<std::int64_t>(tile.some_end[n] - block.begin, block.count);
            for (std::int64_t j = begin; j < end; ++j) {
                const std::int64_t at = j * stride + n * L;
                F<L> dx = S::load(scratch.dw + at);
                if (call.cap > 0) {
                    // A hidden score may have no finite slope; its dx is 0.
                    dx = dx == F<L>{} ? dx : dx * S::load(scratch.cap_slope + at);
                }
                S::store(scratch.dw + at, dx * scale);
            }
        }
    }

    /// The partner of an odd last row: it must not bring a NaN of V along.
    static void clear_odd_row(const RowTile& tile, std::int64_t begin, std::int64_t end, const Scratch& scratch) {
        const std::int64_t stride = tile.lanes * tile.vectors;
        for (std::int64_t j = begin; tile.rows % 2 != 0 && j < end; ++j) {
            scratch.score.scores[j * stride + tile.rows] = 0;
            scratch.dw[j * stride + tile.rows] = 0;
        }
    }

private:
    static constexpr bool pairs = Product::depth_per_lane == 2;
    /// Keys whose scores and dw stay in the first-level cache beside the columns of q and dout.
    static constexpr std::int64_t near_keys = 48;

    /// The same for a block of which all is seen: so few keys at a time that they stay in the first-level cache.
    template <int L>
    static void plain_pairs(const Call& call, const RowTile& tile, const KeyBlock& block, const KeyBlock& values,
                            const Scratch& scratch) {
        const BackwardSizes<Isa, Product> z(call);
        const std::int64_t stride = L * tile.vectors;
        for (std::int64_t j = 0; j < block.count; j += near_keys) {
            const std::int64_t count = smaller(near_keys, block.count - j);
            const auto product = [&](const KeyBlock& from, const float* columns, std::int64_t depth, float* to) {
                matrix_set<Isa, Product, L, Walk::along_row>(from.k + j * from.k_stride, from.k_stride, columns, stride,
                                                             depth, to, stride, count, tile.vectors);
            };
            product(block, scratch.q_columns, z.score_depth, scratch.score.scores);
            product(values, scratch.dout_columns, z.value_depth, scratch.dw);
            PairGradients<Isa, Product>(tile, block, call.factor, call.scale, scratch, j)
                .template keys<false, false>(j, j + count);
        }
    }

    /// dw *= keep/(1-p); keep_mask = 1 or 0.
    template <int L>
    static void drop_dw(const Call& call, const RowTile& tile, const KeyBlock& block, const Scratch& scratch) {
        using S = Simd<Isa, L>;
        const std::int64_t stride = tile.lanes * tile.vectors;
        for_each_dropout<Isa, L>(call, tile, block, [&](std::int64_t j, int n, I<L> keep) {
            const std::int64_t at = j * stride + n * L;
            S::store(scratch.keep_mask + at, keep ? S::all(1.0F) : F<L>{});
            S::store(scratch.dw + at, S::load(scratch.dw + at) * (keep ? S::all(call.drop_factor) : F<L>{}));
        });
    }

    /// scores -> weights (dropped ones 0), dw -> dx.
    template <int L>
    static void differentiate(const Call& call, const RowTile& tile, const KeyBlock& block, const Scored& scored,
                              bool nan_safe, bool dropping, const Scratch& scratch) {
        using S = Simd<Isa, L>;
        const std::int64_t stride = tile.lanes * tile.vectors;
        std::int64_t seen_begin = 0;
        std::int64_t seen_end = 0;
        seen_keys(tile, block, seen_begin, seen_end);
        const F<L> hidden = S::all(negative_infinity);
        const F<L> nothing = S::all(nan_safe ? hidden_weight : 0.0F);
        const F<L> factor = S::all(scored.factor);
        const F<L> scale = S::all(scales_late(call) ? 1.0F : call.scale);
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
                    F<L> dx = w * (S::load(scratch.dw + at) - delta) * scale;
                    if (dropping) { w *= S::load(scratch.keep_mask + at); }
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
};

}  // namespace heed::cpu
