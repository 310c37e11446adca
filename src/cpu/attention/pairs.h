#pragma once
#include "cpu/attention/softmax.h"

/// Weights for products of pairs of bf16, and the product with V that makes room for them: dot products keep two of
/// the four pipes busy, and nearly all that a weight needs runs on the other two. So the weights of a tile are made
/// fused with the product of the tile before it.

namespace heed::cpu {

/// 2^x of 16 numbers from a table of sixteenths, in steps that can be done apart; exactly 0 for -infinity and exactly 1
/// for 0, NaN for NaN. Only two multiply-adds. Rough: a line between the sixteenths, relative error 2.4e-4, where bf16
/// has 2e-3; otherwise degree 3, 1e-7.
template <class Isa, bool Rough>
class Exp2BySixteenths {
public:
    using S = Simd<Isa, 16>;

    HEED_INLINE void split(F<16> x) {
        const F<16> to_sixteenths = S::all(786432.0F);  // 1.5 * 2^19: adding it rounds to a sixteenth
        index_ = S::rounded(x + to_sixteenths);
        whole_ = S::rounded(index_ - to_sixteenths);
        rest_ = S::rounded(x - whole_);
    }
    HEED_INLINE F<16> join() const {
        const F<16> power = look_up(powers);
        F<16> p;
        if constexpr (Rough) {
            p = look_up(slopes) * rest_ + power;
        } else {
            p = S::all(5.550410866e-02F) * rest_ + S::all(2.402265070e-01F);
            p = p * rest_ + S::all(6.931471806e-01F);
            p = (p * rest_) * power + power;
        }
        return S::rounded(S::scale_by_power(p, whole_));  // which rounds down to whole powers itself
    }

private:
    HEED_INLINE F<16> look_up(const float (&table)[16]) const {
#if defined(__AVX512F__)
        return F<16>(_mm512_permutexvar_ps(__m512i(index_), _mm512_load_ps(table)));
#else
        F<16> found;
        for (int n = 0; n < 16; ++n) { found[n] = table[U<16>(index_)[n] & 15U]; }
        return found;
#endif
    }

    static constexpr float log_2 = 0.693147181F;
    alignas(64) static constexpr float powers[16] = {
        1.0F,         1.044273782F, 1.090507733F, 1.138788635F, 1.189207115F, 1.241857812F, 1.296839555F, 1.354255547F,
        1.414213562F, 1.476826146F, 1.542210825F, 1.610490332F, 1.681792831F, 1.756252160F, 1.834008086F, 1.915206561F};
    alignas(64) static constexpr float slopes[16] = {
        log_2 * powers[0], log_2* powers[1],  log_2* powers[2],  log_2* powers[3], log_2* powers[4],  log_2* powers[5],
        log_2* powers[6],  log_2* powers[7],  log_2* powers[8],  log_2* powers[9], log_2* powers[10], log_2* powers[11],
        log_2* powers[12], log_2* powers[13], log_2* powers[14], log_2* powers[15]};

    F<16> index_, whole_, rest_;
};

/// x = 2^x for a few vectors; the same bits as fused with a product.
template <class Isa, int L, bool Rough, int Count>
HEED_INLINE void exp2_of_scores(F<L> (&x)[Count]) {
    if constexpr (L == 16) {
        Exp2BySixteenths<Isa, Rough> exp2[Count];
        HEED_UNROLL
        for (int c = 0; c < Count; ++c) { exp2[c].split(x[c]); }
        HEED_UNROLL
        for (int c = 0; c < Count; ++c) { x[c] = exp2[c].join(); }
    } else {
        Simd<Isa, L>::template exp2_each<Rough>(x);
    }
}

/// Steps 5 and 6 of a tile: scores -> pairs[j / 2][row], the weights of keys j and j + 1 side by side as bf16, 0 where
/// hidden. Rough where lse is not wanted, which is made of their sum. Keys that only some vectors see, or that have
/// no neighbour, are done here at once or at the end; the others wait for a product to be fused with.
template <class Isa, int L, bool Rough>
class PairWeights {
public:
    using S = Simd<Isa, L>;

    HEED_INLINE PairWeights(const RowTile& tile, const KeyBlock& block, float factor, const float* scores,
                            const float* largest, float* pairs)
        : vectors_(tile.vectors), stride_(L * tile.vectors), scores_(scores), pairs_(pairs), factor_(factor) {
        std::int64_t seen_begin = 0;
        seen_keys(tile, block, seen_begin, seen_end_);
        seen_begin = seen_begin / 2 * 2;
        for (int n = 0; n < vectors_; ++n) {
            Vector& v = vector_[n];
            v.begin = larger<std::int64_t>(tile.some_begin[n], block.begin) - block.begin;
            v.end = smaller<std::int64_t>(tile.some_end[n], block.begin + block.count) - block.begin;
            v.next = smaller(larger(seen_begin, (v.begin + 1) / 2 * 2), (seen_end_ + 1) / 2 * 2);
            v.whole_end = larger(v.next, smaller(seen_end_, v.end) / 2 * 2);
            v.largest = S::load(largest + n * L);
            v.base = v.largest == S::all(negative_infinity) ? F<L>{} : v.largest;
            v.sum = F<L>{};
            edges(n, seen_begin, v.next);
        }
    }

    /// Pairs of keys of one vector that follow each other.
    struct Run {
        const float* from;
        float* to;
        std::int64_t pairs;
        F<L>* sum;
        const F<L>* base;
    };
    /// At most so many; none when nothing is left to be fused with a product.
    HEED_INLINE Run take(std::int64_t most) {
        while (now_ < vectors_ && vector_[now_].next == vector_[now_].whole_end) { ++now_; }
        if (now_ == vectors_) { return {nullptr, nullptr, 0, nullptr, nullptr}; }
        Vector& v = vector_[now_];
        const Run run{scores_ + v.next * stride_ + now_ * L, pairs_ + v.next / 2 * stride_ + now_ * L,
                      smaller(most, (v.whole_end - v.next) / 2), &v.sum, &v.base};
        v.next += 2 * run.pairs;
        return run;
    }
    HEED_INLINE bool left() const {
        return now_ < vectors_ && (now_ + 1 < vectors_ || vector_[now_].next < vector_[now_].whole_end);
    }
    HEED_INLINE std::int64_t stride() const { return stride_; }
    HEED_INLINE float factor() const { return factor_; }

    /// What is left, and what the weights leave behind: alpha[row] is what earlier sums must be multiplied by.
    void finish(const RowState& state, float* alpha) {
        for (int n = 0; n < vectors_; ++n) {
            if (n + 1 < vectors_ && vector_[n].next == vector_[n + 1].next) {
                whole<2>(n, smaller(vector_[n].whole_end, vector_[n + 1].whole_end));
            }
            whole<1>(n, vector_[n].whole_end);
            edges(n, vector_[n].whole_end, seen_end_);
            const Vector& v = vector_[n];
            const F<L> rescale = S::exp2(S::load(state.largest + n * L) - v.base);
            S::store(alpha + n * L, rescale);
            S::store(state.sum + n * L, S::load(state.sum + n * L) * rescale + v.sum);
            S::store(state.largest + n * L, v.largest);
        }
    }

private:
    struct Vector {
        std::int64_t begin, end;       ///< keys of the block that it sees
        std::int64_t next, whole_end;  ///< pairs of keys, both of them seen, that are still to be made
        F<L> largest, base, sum;
    };

    /// Pairs of which one key or none is seen.
    HEED_INLINE void edges(int n, std::int64_t j, std::int64_t last) {
        Vector& v = vector_[n];
        for (; j < last; j += 2) {
            F<L> w[2] = {};
            for (int key = 0; key < 2; ++key) {
                if (j + key < v.begin || j + key >= v.end) { continue; }
                F<L> one[1] = {S::rounded(S::load(scores_ + (j + key) * stride_ + n * L) * S::all(factor_)) - v.base};
                exp2_of_scores<Isa, L, Rough>(one);
                v.sum += one[0];
                w[key] = one[0];
            }
            S::store(pairs_ + j / 2 * stride_ + n * L, S::pair_bf16(w[0], w[1]));
        }
    }

    /// Keys up to `last` of vectors n .. n + Count, step by step side by side.
    template <int Count>
    HEED_INLINE void whole(int n, std::int64_t last) {
        std::int64_t j = vector_[n].next;
        if (j >= last) { return; }
        const F<L> factor = S::all(factor_);
        F<L> base[Count], sum[Count];
        HEED_UNROLL
        for (int c = 0; c < Count; ++c) {
            base[c] = vector_[n + c].base;
            sum[c] = vector_[n + c].sum;
        }
        const float* from = scores_ + n * L;
        float* to = pairs_ + n * L;
        for (; j < last; j += 2) {
            F<L> w[2 * Count];
            HEED_UNROLL
            for (int c = 0; c < 2 * Count; ++c) {
                w[c] = S::rounded(S::load(from + (j + c % 2) * stride_ + c / 2 * L) * factor) - base[c / 2];
            }
            exp2_of_scores<Isa, L, Rough>(w);
            HEED_UNROLL
            for (int c = 0; c < 2 * Count; c += 2) {
                sum[c / 2] += w[c];
                sum[c / 2] += w[c + 1];
                S::store(to + j / 2 * stride_ + c / 2 * L, S::pair_bf16(w[c], w[c + 1]));
            }
        }
        HEED_UNROLL
        for (int c = 0; c < Count; ++c) {
            vector_[n + c].next = last;
            vector_[n + c].sum = sum[c];
        }
    }

    int vectors_;
    int now_ = 0;
    std::int64_t stride_;
    std::int64_t seen_end_ = 0;
    const float* scores_;
    float* pairs_;
    float factor_;
    Vector vector_[most_rows / L];
};

/// multiply_add for V, and a pair of weights every three of its steps.
template <class Isa, class Product, int MR, int NV, bool Rough, class Fused>
HEED_INLINE void multiply_add_fused(const float* a, std::int64_t a_stride, const float* b, std::int64_t b_stride,
                                    std::int64_t depth, F<16> (&sum)[MR][NV], PairWeights<Isa, 16, Rough>& weights,
                                    Fused& fused) {
    using S = Simd<Isa, 16>;
    constexpr std::int64_t steps = 3;
    const auto step = [&](std::int64_t n) HEED_INLINE_LAMBDA {
        multiply_add<Isa, Product, 16, MR, NV, Walk::along_column>(a + n * a_stride, a_stride, b + n * b_stride,
                                                                   b_stride, 1, sum);
    };
    const std::int64_t stride = weights.stride();
    const float factor = weights.factor();
    while (depth >= steps) {
        const auto run = weights.take(depth / steps);
        if (run.pairs == 0) { break; }
        depth -= steps * run.pairs;
        F<16> total = *run.sum;
        const float* from = run.from;
        float* to = run.to;
        // No counter: what does not fit the general registers goes through those that the products keep busy.
        const float* const end = to + run.pairs * stride;
        do {
            fused();
            Exp2BySixteenths<Isa, Rough> first, second;
            first.split(S::rounded(S::load(from) * S::all(factor)) - *run.base);
            step(0);
            second.split(S::rounded(S::load(from + stride) * S::all(factor)) - *run.base);
            const F<16> x = first.join();
            step(1);
            const F<16> y = second.join();
            total += x;
            total += y;
            S::store(to, S::pair_bf16(x, y));
            step(2);
            a += 3 * a_stride;
            b += 3 * b_stride;
            from += 2 * stride;
            to += stride;
        } while (to != end);
        *run.sum = total;
    }
    multiply_add<Isa, Product, 16, MR, NV, Walk::along_column>(a, a_stride, b, b_stride, depth, sum, fused);
}

/// matrix_add of weights and V, and another tile's weights fused with it as long as there are any.
template <class Isa, class Product, bool Rough, class Span, class Fused>
HEED_NOINLINE void matrix_add_fused(const float* a, std::int64_t a_stride, const float* b, std::int64_t b_stride,
                                    float* c, std::int64_t c_stride, std::int64_t rows, int vectors, Old old,
                                    const float* factor, Span span, PairWeights<Isa, 16, Rough>& weights,
                                    Fused& fused) {
    // Five rows of four vectors leave registers for the weights, and time for all of them where D is 64 or more.
    constexpr int MR = 5, NV = 4, L = 16;
    for (int first = 0; first < vectors; first += NV) {
        const int count = smaller(NV, vectors - first);
        std::int64_t m = 0;
        for (; count == NV && m + MR <= rows && weights.left(); m += MR) {
            const auto [begin, end] = span(m, MR);
            F<L> sum[MR][NV] = {};
            float* to = c + m * c_stride + first * L;
            multiply_add_fused<Isa, Product>(a + m + begin * a_stride, a_stride, b + first * L + begin * b_stride,
                                             b_stride, end - begin, sum, weights, fused);
            end_sums<Isa, L>(sum, to, c_stride, old, factor + m);
        }
        if (m == rows) { continue; }
        matrix_add<Isa, Product, L, Walk::along_column>(
            a + m, a_stride, b + first * L, b_stride, c + m * c_stride + first * L, c_stride, rows - m, count, old,
            factor + m, [&](std::int64_t r, int some) { return span(m + r, some); }, fused);
    }
}

}  // namespace heed::cpu
