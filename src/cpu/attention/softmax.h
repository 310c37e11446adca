#pragma once
#include "cpu/attention/adjust.h"

/// Steps 5 and 6 for a tile: weights relative to the running maximum, dropout, and the form that the product with V
/// reads.

namespace heed::cpu {

/// Running state of a tile's rows: largest score so far (in powers of two) and sum of 2^(score - largest).
struct RowState {
    float* largest;  ///< [stride]
    float* sum;      ///< [stride]
};

/// A hidden weight in a tile whose values are not all finite: the nan_safe product skips it.
constexpr float hidden_weight = -0.0F;

/// Keys of the block, counted from its start, that any vector of the tile sees.
HEED_INLINE void seen_keys(const RowTile& tile, const KeyBlock& block, std::int64_t& begin, std::int64_t& end) {
    begin = larger<std::int64_t>(tile.begin, block.begin) - block.begin;
    end = smaller<std::int64_t>(tile.end, block.begin + block.count) - block.begin;
}

/// scores -> weights in place; alpha[row] is what earlier sums must be multiplied by.
template <class Isa, int L>
void weigh(const RowTile& tile, const KeyBlock& block, const Scored& scored, bool nan_safe, float* scores,
           const float* largest, const RowState& state, float* alpha) {
    using S = Simd<Isa, L>;
    const std::int64_t stride = tile.lanes * tile.vectors;
    std::int64_t seen_begin = 0;
    std::int64_t seen_end = 0;
    seen_keys(tile, block, seen_begin, seen_end);
    const F<L> hidden = S::all(negative_infinity);
    const F<L> nothing = S::all(nan_safe ? hidden_weight : 0.0F);
    for (int n = 0; n < tile.vectors; ++n) {
        const std::int64_t begin = larger<std::int64_t>(tile.some_begin[n], block.begin) - block.begin;
        const std::int64_t end = smaller<std::int64_t>(tile.some_end[n], block.begin + block.count) - block.begin;
        const F<L> before = S::load(state.largest + n * L);
        const F<L> now = S::load(largest + n * L);
        // Nothing visible yet: subtract 0, so that exp2(-infinity) gives exact zeros and no NaN.
        const F<L> base = now == hidden ? F<L>{} : now;
        // Scores are rounded before the largest is taken off, as the largest was: its own weight is exactly 1.
        const F<L> factor = S::all(scored.factor);
        F<L> sum = {};
        float* place = scores + n * L;
        for (std::int64_t j = seen_begin; j < begin && j < seen_end; ++j) { S::store(place + j * stride, nothing); }
        if (!nan_safe) {
            for (std::int64_t j = begin; j < end; ++j) {
                const F<L> w = S::exp2(S::rounded(S::load(place + j * stride) * factor) - base);
                sum += w;
                S::store(place + j * stride, w);
            }
        } else {
            for (std::int64_t j = begin; j < end; ++j) {
                const F<L> x = S::load(place + j * stride);
                const F<L> w = S::exp2(S::rounded(x * factor) - base);
                sum += w;
                S::store(place + j * stride, x == hidden ? nothing : w);
            }
        }
        for (std::int64_t j = larger(begin, larger(end, seen_begin)); j < seen_end; ++j) {
            S::store(place + j * stride, nothing);
        }
        const F<L> rescale = S::exp2(before - base);
        S::store(alpha + n * L, rescale);
        S::store(state.sum + n * L, S::load(state.sum + n * L) * rescale + sum);
        S::store(state.largest + n * L, now);
    }
}

/// The keys of Philox's rounds. From memory they cost nothing, where a vector made of each anew would.
struct PhiloxKeys {
    static constexpr int rounds = 10;
    static constexpr std::uint32_t factor[2] = {0xD2511F53U, 0xCD9E8D57U};
    std::uint32_t round[rounds][2];

    explicit HEED_INLINE PhiloxKeys(std::uint64_t seed) {
        for (std::uint32_t n = 0; n < rounds; ++n) {
            round[n][0] = static_cast<std::uint32_t>(seed) + n * 0x9E3779B9U;
            round[n][1] = static_cast<std::uint32_t>(seed >> 32) + n * 0xBB67AE85U;
        }
    }
};

/// The dropout words of L rows: Philox4x32-10 of (quad, row, plane, offset). Of its first two rounds one part depends
/// on the rows alone and is computed once, the other on the group of keys alone and needs no vectors: eight are left.
template <class Isa, int L>
class DropoutWords {
public:
    HEED_INLINE DropoutWords(const PhiloxKeys& keys, std::uint32_t offset, U<L> plane, U<L> row)
        : keys_(keys), offset_(offset) {
        for (int h = 0; h < parts; ++h) {
            U<L> high, low;
            multiply(part_of(plane, h), 1, high, low);
            plane_low_[h] = low;
            multiply(high ^ part_of(row, h) ^ S::all(keys_.round[0][0]), 0, row_high_[h], row_low_[h]);
        }
    }

    /// Of keys 4*quad .. 4*quad+3.
    HEED_INLINE void of(std::uint32_t quad, U<L> (&word)[4]) const {
        const std::uint64_t first = std::uint64_t{PhiloxKeys::factor[0]} * quad;
        const std::uint32_t mixed = static_cast<std::uint32_t>(first >> 32) ^ offset_ ^ keys_.round[0][1];
        const std::uint64_t second = std::uint64_t{PhiloxKeys::factor[1]} * mixed;
        U<L> x[parts][4];
        HEED_UNROLL
        for (int h = 0; h < parts; ++h) {
            x[h][0] = plane_low_[h] ^ S::all(static_cast<std::uint32_t>(second >> 32) ^ keys_.round[1][0]);
            x[h][1] = S::all(static_cast<std::uint32_t>(second));
            x[h][2] = row_high_[h] ^ S::all(static_cast<std::uint32_t>(first) ^ keys_.round[1][1]);
            x[h][3] = row_low_[h];
        }
        HEED_UNROLL
        for (int round = 2; round < PhiloxKeys::rounds; ++round) {
            HEED_UNROLL
            for (int h = 0; h < parts; ++h) {
                U<L> high[2], low[2];
                multiply(x[h][0], 0, high[0], low[0]);
                multiply(x[h][2], 1, high[1], low[1]);
                x[h][0] = high[1] ^ x[h][1] ^ S::all(keys_.round[round][0]);
                x[h][1] = low[1];
                x[h][2] = high[0] ^ x[h][3] ^ S::all(keys_.round[round][1]);
                x[h][3] = low[0];
            }
        }
        HEED_UNROLL
        for (int c = 0; c < 4; ++c) {
            if constexpr (parts == 2) {
                word[c] = S::words_of_halves(x[0][c], x[1][c]);
            } else {
                word[c] = x[0][c];
            }
        }
    }

private:
    using S = Simd<Isa, L>;

    /// Where a wide product is one instruction, words of even and of odd rows are in the lower halves of wide lanes,
    /// rubbish in the upper halves: nothing has to be put together until the end.
    static constexpr int parts = S::has_wide_lanes ? 2 : 1;

    static HEED_INLINE U<L> part_of(U<L> x, int h) {
        if constexpr (parts == 2) { return h == 0 ? x : S::upper_words(x); }
        return x;
    }
    static HEED_INLINE void multiply(U<L> x, int which, U<L>& high, U<L>& low) {
        if constexpr (parts == 2) {
            low = S::multiply_lower_words(x, PhiloxKeys::factor[which]);
            high = S::upper_words(low);
        } else {
            S::multiply_wide(x, PhiloxKeys::factor[which], high, low);
        }
    }

    const PhiloxKeys& keys_;
    std::uint32_t offset_;
    U<L> plane_low_[parts], row_high_[parts], row_low_[parts];
};

/// Calls visit(quad, word) for the groups of four keys of [begin, end), with the words of vector n's rows.
template <class Isa, int L, class Visit>
HEED_INLINE void for_each_quad(const Call& call, const PhiloxKeys& philox, const RowTile& tile, int n,
                               std::int64_t begin, std::int64_t end, Visit visit) {
    U<L> plane;
    __builtin_memcpy(&plane, tile.plane + n * L, sizeof(plane));
    const DropoutWords<Isa, L> words(philox, call.drop_offset, plane, U<L>(Simd<Isa, L>::load(tile.index + n * L)));
    for (std::int64_t quad = begin / 4; quad * 4 < end; ++quad) {
        U<L> word[4];
        words.of(static_cast<std::uint32_t>(quad), word);
        visit(quad, word);
    }
}

/// Calls visit(j, n, keep) for keys j (from the block's start) in the range that vector n sees, keep a comparison mask.
template <class Isa, int L, class Visit>
HEED_INLINE void for_each_dropout(const Call& call, const RowTile& tile, const KeyBlock& block, Visit visit) {
    using S = Simd<Isa, L>;
    const U<L> below = S::all(call.drop_below);
    const PhiloxKeys philox(call.drop_seed);
    for (int n = 0; n < tile.vectors; ++n) {
        const std::int64_t begin = larger<std::int64_t>(tile.some_begin[n], block.begin);
        const std::int64_t end = smaller<std::int64_t>(tile.some_end[n], block.begin + block.count);
        if (call.keep.data != nullptr) {
            const Tensor4& keep = call.keep;
            for (std::int64_t j = begin; j < end; ++j) {
                std::int32_t lane[L];
                for (int r = 0; r < L; ++r) {
                    const std::int64_t at = tile.sequence * keep.b + tile.head[n * L + r] * keep.h +
                                            tile.index[n * L + r] * keep.row + j * keep.column;
                    lane[r] = keep.data[at] != 0 ? -1 : 0;
                }
                visit(j - block.begin, n, S::load(lane));
            }
            continue;
        }
        for_each_quad<Isa, L>(call, philox, tile, n, begin, end, [&](std::int64_t quad, const U<L>(&word)[4]) {
            HEED_UNROLL
            for (int c = 0; c < 4; ++c) {
                const std::int64_t j = quad * 4 + c;
                if (j >= begin && j < end) { visit(j - block.begin, n, I<L>(word[c] > below)); }
            }
        });
    }
}

/// weights = 0 where dropped; the factor 1/(1-p) is applied with the normaliser.
template <class Isa, int L>
void drop(const Call& call, const RowTile& tile, const KeyBlock& block, float* weights) {
    using S = Simd<Isa, L>;
    const std::int64_t stride = tile.lanes * tile.vectors;
    for_each_dropout<Isa, L>(call, tile, block, [&](std::int64_t j, int n, I<L> keep) {
        float* place = weights + j * stride + n * L;
        const F<L> w = S::load(place);
        // A hidden weight stays the mark that it is.
        const I<L> hidden = I<L>(w) == I<L>(S::all(hidden_weight));
        S::store(place, (keep | hidden) ? w : F<L>{});
    });
}

/// The same for weights in pairs, whose block begins at an even key.
template <class Isa, int L>
void drop_pairs(const Call& call, const RowTile& tile, const KeyBlock& block, float* pairs) {
    using S = Simd<Isa, L>;
    const std::int64_t stride = tile.lanes * tile.vectors;
    const U<L> below = S::all(call.drop_below);
    const PhiloxKeys philox(call.drop_seed);
    for (int n = 0; n < tile.vectors; ++n) {
        const std::int64_t begin = larger<std::int64_t>(tile.some_begin[n], block.begin);
        const std::int64_t end = smaller<std::int64_t>(tile.some_end[n], block.begin + block.count);
        for_each_quad<Isa, L>(call, philox, tile, n, begin, end, [&](std::int64_t quad, const U<L>(&word)[4]) {
            HEED_UNROLL
            for (int c = 0; c < 4; c += 2) {
                const std::int64_t j = quad * 4 + c;
                if (j + 1 < begin || j >= end) { continue; }
                float* place = pairs + (j - block.begin) / 2 * stride + n * L;
                const U<L> keep = (U<L>(word[c] > below) & 0xFFFFU) | (U<L>(word[c + 1] > below) & 0xFFFF0000U);
                S::store(place, F<L>(U<L>(S::load(place)) & keep));
            }
        });
    }
}

}  // namespace heed::cpu
