#pragma once
#include "cpu/attention/adjust.h"
#include "cpu/attention/backward/pack.h"

/// Rows with scores so large that their lse says too little. A float near 3e8 moves in steps of 32, so 2^(x - lse) of
/// such a row may be e^16 where it should be at most 1, also where lse came from a product that sums in another order.
/// The largest score and the sum of such rows are taken anew, from the very scores that their weights are made of.

namespace heed::cpu {

/// In powers of two: half a step of a float there changes a weight by 1 in 1400. Scores of trained models stay below.
constexpr float large_lse = 16384;

HEED_INLINE bool is_large_lse(float lse) {
    const float size = lse < 0 ? -lse : lse;
    return size >= large_lse && size < __builtin_inff();
}

HEED_INLINE bool has_large_lse(const RowTile& tile, const float* lse) {
    bool any = false;
    for (int r = 0; r < tile.rows; ++r) { any = any || is_large_lse(lse[r]); }
    return any;
}

/// The largest score of each row and the sum of 2^(score - largest), while keys are looked at block by block.
template <class Isa>
struct LargestAndSum {
    float largest[most_rows];
    float sum[most_rows];

    HEED_INLINE LargestAndSum() {
        for (int r = 0; r < most_rows; ++r) {
            largest[r] = negative_infinity;
            sum[r] = 0;
        }
    }

    /// A block's scores; `raised` is `largest` with those of the block.
    template <int L>
    void add(const RowTile& tile, const KeyBlock& block, const Scored& scored, const float* scores,
             const float* raised) {
        using S = Simd<Isa, L>;
        const std::int64_t stride = tile.lanes * tile.vectors;
        const F<L> factor = S::all(scored.factor);
        for (int n = 0; n < tile.vectors; ++n) {
            const std::int64_t begin = larger<std::int64_t>(tile.some_begin[n] - block.begin, 0);
            const std::int64_t end = smaller<std::int64_t>(tile.some_end[n] - block.begin, block.count);
            const F<L> top = S::load(raised + n * L);
            const F<L> base = top == S::all(negative_infinity) ? F<L>{} : top;
            F<L> total = S::load(sum + n * L) * S::exp2(S::load(largest + n * L) - base);
            for (std::int64_t j = begin; j < end; ++j) {
                total += S::exp2(S::rounded(S::load(scores + j * stride + n * L) * factor) - base);
            }
            S::store(largest + n * L, top);
            S::store(sum + n * L, total);
        }
    }

    /// lse and what a float of it does not hold, of the rows whose lse is large.
    void replace(const Call& call, const RowTile& tile, float* lse, float* rest) const {
        for (int r = 0; r < tile.rows; ++r) {
            if (!is_large_lse(lse[r])) { continue; }
            float top = largest[r];
            double total = static_cast<double>(sum[r]);
            if (call.sinks) {
                const auto sink = static_cast<float>(sink_of(call, tile.head[r]) * std::numbers::log2e);
                const float before = top;
                top = larger(top, sink);
                total = total * exp2(static_cast<double>(before) - static_cast<double>(top)) +
                        exp2(static_cast<double>(sink) - static_cast<double>(top));
            }
            if (!(total > 0) || !(total < __builtin_inf())) { continue; }  // nothing seen, or NaN: as it came
            lse[r] = top;
            rest[r] = static_cast<float>(log2(total));
        }
    }
};

}  // namespace heed::cpu
