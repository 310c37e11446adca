#pragma once
#include "cpu/attention_adjust.h"

/// Steps 5 and 6 for a tile: weights relative to the running maximum, dropout, and the form that the product with V
/// reads.

namespace heed::cpu {

/// Running state of a tile's rows: largest score so far (in powers of two) and sum of 2^(score - largest).
struct RowState {
    float* largest;  ///< [stride]
    float* sum;      ///< [stride]
};

/// A hidden weight in a tile whose values are not all finite: the careful product skips it.
constexpr float hidden_weight = -0.0F;

/// Keys of the block, counted from its start, that any vector of the tile sees.
HEED_INLINE void seen_keys(const RowTile& tile, const KeyBlock& block, std::int64_t& begin, std::int64_t& end) {
    begin = larger<std::int64_t>(tile.begin, block.begin) - block.begin;
    end = smaller<std::int64_t>(tile.end, block.begin + block.count) - block.begin;
}

/// scores -> weights in place; alpha[row] is what earlier sums must be multiplied by.
template <class Isa, int L>
void weigh(const RowTile& tile, const KeyBlock& block, const Scored& scored, bool careful, float* scores,
           const float* largest, const RowState& state, float* alpha) {
    using S = Simd<Isa, L>;
    const std::int64_t stride = tile.lanes * tile.vectors;
    std::int64_t seen_begin = 0;
    std::int64_t seen_end = 0;
    seen_keys(tile, block, seen_begin, seen_end);
    const F<L> hidden = S::all(negative_infinity);
    const F<L> nothing = S::all(careful ? hidden_weight : 0.0F);
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
        if (!careful) {
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
    std::uint32_t round[10][2];

    explicit HEED_INLINE PhiloxKeys(std::uint64_t seed) {
        for (std::uint32_t n = 0; n < 10; ++n) {
            round[n][0] = static_cast<std::uint32_t>(seed) + n * 0x9E3779B9U;
            round[n][1] = static_cast<std::uint32_t>(seed >> 32) + n * 0xBB67AE85U;
        }
    }
};

/// The dropout words of key group `quad` (keys 4*quad .. 4*quad+3) for L rows: Philox4x32-10.
template <class Isa, int L>
HEED_INLINE void dropout_words(const PhiloxKeys& keys, std::uint32_t offset, U<L> plane, U<L> row, std::uint32_t quad,
                               U<L> (&word)[4]) {
    using S = Simd<Isa, L>;
#if defined(__AVX512F__)
    if constexpr (L == 16) {
        // Words of even and of odd rows in the lower halves of wide lanes, rubbish in the upper halves: a wide product
        // is one instruction there, and nothing has to be put together until the end.
        const auto all = [](std::uint32_t x) { return _mm512_set1_epi32(static_cast<int>(x)); };
        __m512i half[2][4] = {{all(quad), __m512i(row), __m512i(plane), all(offset)}, {all(quad), {}, {}, all(offset)}};
        half[1][1] = _mm512_srli_epi64(__m512i(row), 32);
        half[1][2] = _mm512_srli_epi64(__m512i(plane), 32);
        HEED_UNROLL
        for (int round = 0; round < 10; ++round) {
            HEED_UNROLL
            for (int h = 0; h < 2; ++h) {
                __m512i(&x)[4] = half[h];
                const __m512i product0 = _mm512_mul_epu32(x[0], all(0xD2511F53U));
                const __m512i product1 = _mm512_mul_epu32(x[2], all(0xCD9E8D57U));
                x[0] =
                    _mm512_ternarylogic_epi32(_mm512_srli_epi64(product1, 32), x[1], all(keys.round[round][0]), 0x96);
                x[1] = product1;
                x[2] =
                    _mm512_ternarylogic_epi32(_mm512_srli_epi64(product0, 32), x[3], all(keys.round[round][1]), 0x96);
                x[3] = product0;
            }
        }
        HEED_UNROLL
        for (int c = 0; c < 4; ++c) {
            word[c] = U<L>(_mm512_mask_shuffle_epi32(half[0][c], 0xAAAA, half[1][c], _MM_PERM_CCAA));
        }
        return;
    }
#endif
    word[0] = S::all(quad);
    word[1] = row;
    word[2] = plane;
    word[3] = S::all(offset);
    HEED_UNROLL
    for (int round = 0; round < 10; ++round) {
        U<L> high0, low0, high1, low1;
        S::multiply_wide(word[0], 0xD2511F53U, high0, low0);
        S::multiply_wide(word[2], 0xCD9E8D57U, high1, low1);
        word[0] = high1 ^ word[1] ^ S::all(keys.round[round][0]);
        word[1] = low1;
        word[2] = high0 ^ word[3] ^ S::all(keys.round[round][1]);
        word[3] = low0;
    }
}

/// Calls visit(quad, word) for the groups of four keys of [begin, end), with the words of vector n's rows.
template <class Isa, int L, class Visit>
HEED_INLINE void for_each_quad(const Call& call, const PhiloxKeys& philox, const RowTile& tile, int n,
                               std::int64_t begin, std::int64_t end, Visit visit) {
    const auto row = U<L>(Simd<Isa, L>::load(tile.index + n * L));
    U<L> plane;
    __builtin_memcpy(&plane, tile.plane + n * L, sizeof(plane));
    for (std::int64_t quad = begin / 4; quad * 4 < end; ++quad) {
        U<L> word[4];
        dropout_words<Isa, L>(philox, call.drop_offset, plane, row, static_cast<std::uint32_t>(quad), word);
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
