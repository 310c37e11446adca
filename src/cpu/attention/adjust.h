#pragma once
#include "cpu/attention/bias.h"

/// Steps 2 to 4: what becomes of the scores between the two products.

namespace heed::cpu {

/// Steps 2 to 4 of one vector of rows, in place.
template <class Isa, int L, bool Cap, bool Dense, bool Alibi, bool Mask, bool Scale>
class Adjust {
public:
    using S = Simd<Isa, L>;

    HEED_INLINE Adjust(const Call& call, const RowTile& tile, const KeyBlock& block, int n, float* scores,
                       float* cap_slope)
        : call_(call),
          positions_(block.positions),
          stride_(tile.lanes * tile.vectors),
          scores_(scores + n * L),
          cap_slope_(cap_slope == nullptr ? nullptr : cap_slope + n * L) {
        low_ = S::load(tile.low + n * L);
        high_ = S::load(tile.high + n * L);
        at_ = __builtin_convertvector(S::load(tile.position + n * L), F<L>);
        slope_ = S::load(tile.slope + n * L);
    }

    /// Keys [begin, end) of the block; returns the largest, in the domain of the scores as stored.
    HEED_INLINE F<L> keys(std::int64_t begin, std::int64_t end, const float* const* dense, std::int64_t first,
                          F<L> largest) {
        std::int64_t j = begin;
        if constexpr (Dense) {
            F<L> more[L];
            for (; j + L <= end; j += L) {
                HEED_UNROLL
                for (int r = 0; r < L; ++r) { more[r] = S::load(dense[r] + first + j); }
                S::transpose(more);
                HEED_UNROLL
                for (int g = 0; g < L; g += group) { largest = some<group>(j + g, more + g, largest); }
            }
            for (; j < end; ++j) {
                float lane[L];
                for (int r = 0; r < L; ++r) { lane[r] = dense[r][first + j]; }
                more[0] = S::load(lane);
                largest = some<1>(j, more, largest);
            }
        } else {
            for (; j + group <= end; j += group) { largest = some<group>(j, nullptr, largest); }
            for (; j < end; ++j) { largest = some<1>(j, nullptr, largest); }
        }
        return largest;
    }

private:
    static constexpr int group = 4;

    template <int G>
    HEED_INLINE F<L> some(std::int64_t j, const F<L>* more, F<L> largest) {
        const F<L> hidden = S::all(negative_infinity);
        float* place = scores_ + j * stride_;
        asm("" : "+r"(place));  // else the compiler keeps an address for each key of the unrolled loop, and spills them
        F<L> x[G];
        HEED_UNROLL
        for (int g = 0; g < G; ++g) { x[g] = S::load(place + g * stride_); }
        if constexpr (Cap) {
            HEED_UNROLL
            for (int g = 0; g < G; ++g) { x[g] *= S::all(call_.inverse_cap); }
            tanh_each<Isa, L, G>(x);
            if (cap_slope_ != nullptr) {
                HEED_UNROLL
                for (int g = 0; g < G; ++g) { S::store(cap_slope_ + (j + g) * stride_, S::all(1.0F) - x[g] * x[g]); }
            }
        }
        HEED_UNROLL
        for (int g = 0; g < G; ++g) {
            if constexpr (Cap && (Dense || Alibi)) { x[g] *= S::all(call_.cap); }
            if constexpr (Scale) { x[g] *= S::all(call_.factor); }
            if constexpr (Alibi) {
                const F<L> away = at_ - S::all(static_cast<float>(positions_[j + g]));
                x[g] -= slope_ * S::max(away, -away);
            }
            if constexpr (Dense) {
                x[g] = more[g] != hidden
                           ? S::max(S::all(least_bias), more[g]) * S::all(std::numbers::log2e_v<float>) + x[g]
                           : more[g];
            }
            if constexpr (Mask) {
                const I<L> position = S::all(positions_[j + g]);
                x[g] = ((position >= low_) & (position <= high_)) ? x[g] : hidden;
            }
            if constexpr (Cap || Dense || Alibi || Mask || Scale) { S::store(place + g * stride_, x[g]); }
            largest = S::max(x[g], largest);
        }
        return largest;
    }

    const Call& call_;
    const std::int32_t* positions_;
    std::int64_t stride_;
    float* scores_;
    float* cap_slope_;
    I<L> low_, high_;
    F<L> at_, slope_;
};

/// Steps 2 to 4 over the whole tile; largest[row] is raised. Keys that a vector does not see at all are left alone.
template <class Isa, int L>
HEED_NOINLINE Scored adjust_scores(const Call& call, const RowTile& tile, const KeyBlock& block, const DenseRows& dense,
                                   float* scores, float* cap_slope, float* largest) {
    const bool cap = call.cap > 0;
    const bool scale = !cap && (dense.any || call.alibi || !(call.factor > 0));
    const bool cap_later = cap && !dense.any && !call.alibi;
    Scored scored{.factor = cap_later ? call.cap : cap || scale ? 1.0F : call.factor, .partial = dense.any};
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
                    Adjust<Isa, L, Cap, Dense, Alibi, Mask, Scale> adjust(call, tile, block, n, scores, cap_slope);
                    most = adjust.keys(from - block.begin, to - block.begin, dense.row + n * L, dense.first, most);
                }
            };
            part.template operator()<true>(begin, all_begin);
            part.template operator()<false>(all_begin, all_end);
            part.template operator()<true>(all_end, end);
        };
        const int kind = (cap ? 4 : 0) + (dense.any ? 2 : 0) + (call.alibi ? 1 : 0);
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

/// What the scores of a tile are made of and change.
struct Scoring {
    const BiasRows& rows;
    const NextBias& next;  ///< of the keys after the block
    const float* q;        ///< [depth][row]
    std::int64_t depth;
    float* cap_slope;  ///< the soft-cap's derivative goes there; may be null
    float* largest;    ///< of each row, raised
};

/// Steps 1 to 4 of a tile and a block. While scores are computed, the bias of the next keys is
/// prefetched.
template <class Isa, class Product, int L>
Scored score_block(const Call& call, const RowTile& tile, const Keys& keys, const KeyBlock& block, Cover pattern,
                   const Scoring& scoring, const ScoreScratch& scratch) {
    const auto& [rows, next, q, depth, cap_slope, largest] = scoring;
    const std::int64_t stride = tile.lanes * tile.vectors;
    const std::int64_t block_end = block.begin + block.count;
    const bool asks = call.bias.data != nullptr || call.allow.data != nullptr;
    DenseRows dense(call, tile, pattern, rows, scratch);
    const bool adjusts = dense.any || call.alibi || call.cap > 0;
    const std::int64_t together = adjusts ? adjusted_keys<Product> : block.count;
    const bool only_dense = dense.any && !call.alibi && !(call.cap > 0);
    if constexpr (Product::depth_per_lane == 2 && L == 16 && !UsesTiles<Product>) {
        if (only_dense && tile.vectors * L == most_rows && block.seen_by_all(tile)) {
            const NextBias here{&rows, tile.rows, block.begin + together, block_end};
            BothPrefetch ahead{here.template ahead<Product>(call), next.template ahead<Product>(call)};
            dense.move_to<Isa>(call, tile, keys, block, pattern, scratch);
            const bool hides =
                scores_with_bias<Isa, Product>(block, q, depth, call.scale, dense, scratch.scores, largest, ahead);
            ahead.rest();
            return {.factor = std::numbers::log2e_v<float>, .partial = hides};
        }
    }
    Scored scored{.factor = 1, .partial = false};
    for (std::int64_t from = 0; from < block.count; from += together) {
        const std::int64_t to = smaller(from + together, block.count);
        const KeyBlock part = block.template part<Product>(from, to);
        float* scores = scratch.scores + from * stride;
        const bool quick = only_dense && part.seen_by_all(tile);
        if (asks) {
            const NextBias here{&rows, tile.rows, block.begin + to, block_end};
            BiasPrefetch ahead = (to < block.count ? here : next).template ahead<Product>(call);
            raw_scores<Isa, Product, L>(tile, part, q, depth, scores, ahead);
            ahead.rest();
        } else {
            raw_scores<Isa, Product, L>(tile, part, q, depth, scores);
        }
        dense.move_to<Isa>(call, tile, keys, part, pattern, scratch);
        if (quick) {
            const bool hides = add_dense<Isa, L>(call.factor, tile.vectors, part.count, dense, scores, largest);
            scored = {.factor = 1, .partial = scored.partial || hides};
            continue;
        }
        float* slopes = cap_slope == nullptr ? nullptr : cap_slope + from * stride;
        const Scored some = adjust_scores<Isa, L>(call, tile, part, dense, scores, slopes, largest);
        scored = {.factor = some.factor, .partial = scored.partial || some.partial};
    }
    return scored;
}

}  // namespace heed::cpu
