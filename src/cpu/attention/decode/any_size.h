#pragma once
#include "cpu/attention/decode/softmax.h"

/// Decoding's products for any number of rows and any head size, as vectors of floats or of pairs of bf16.

namespace heed::cpu {

template <class Isa>
struct DecodeAnySize {
    using Softmax = DecodeSoftmax<Isa>;
    using Group = typename Softmax::Group;
    using Stream = typename Softmax::Stream;
    static constexpr int L = Softmax::L;
    using S = Simd<Isa, L>;

    /// Lanes of a row of queries.
    template <class KeyRows>
    static HEED_INLINE std::int64_t query_stride(const Call& call) {
        return round_up(call.head_size, L) / KeyRows::Product::depth_per_lane;
    }

    /// weights[r][n] = q_r . k_n
    template <class KeyRows, int R>
    static HEED_INLINE void scores(const Stream& stream, const RowRun& k, Group& group, RowPrefetch& ahead) {
        const std::int64_t stride = query_stride<KeyRows>(stream.call);
        // Where the size is known, the compiler keeps what it can of q in registers over several keys.
        if constexpr (Isa::registers >= 32 && R <= 4) {
            if (stride == 8 * L) { return scores_of<KeyRows, R>(stream, k, 8 * L, group, ahead); }
            if (stride == 4 * L) { return scores_of<KeyRows, R>(stream, k, 4 * L, group, ahead); }
        }
        scores_of<KeyRows, R>(stream, k, stride, group, ahead);
    }

    /// One key after the other, each from end to end: the order in which the hardware fetches ahead. Four keys at
    /// once would share what is loaded of q, but came out slower from memory.
    template <class KeyRows, int R>
    static HEED_INLINE void scores_of(const Stream& stream, const RowRun& k, std::int64_t stride, Group& group,
                                      RowPrefetch& ahead) {
        constexpr int rows = smaller(R, L);
        constexpr int at_once = L / rows;
        for (int first = 0; first < R; first += rows) {
            const float* q = stream.scratch.q + first * stride;
            for (int j = 0; j < L; j += at_once) {
                F<L> sum[L];
                HEED_UNROLL
                for (int n = 0; n < at_once; ++n) {
                    F<L> part[rows] = {};
                    dot<KeyRows, rows>(k.first + (j + n) * k.step, q, stride, part, ahead);
                    HEED_UNROLL
                    for (int r = 0; r < rows; ++r) { sum[r * at_once + n] = part[r]; }
                }
                float result[L];
                S::store(result, sums_of<Isa, L>(sum));
                HEED_UNROLL
                for (int r = 0; r < rows; ++r) {
                    __builtin_memcpy(group.weights[first + r] + j, result + r * at_once, at_once * sizeof(float));
                }
            }
        }
    }

    /// Part sums of q_r . key, lane by lane.
    template <class KeyRows, int R>
    static HEED_INLINE void dot(const char* key, const float* q, std::int64_t stride, F<L> (&part)[R],
                                RowPrefetch& ahead) {
        std::int64_t c = 0;
        const auto columns = [&]<int NV>() __attribute__((always_inline)) {
            constexpr int lines = NV * L * KeyRows::bytes / 64;
            for (; c + NV * L <= stride; c += NV * L) {
                HEED_UNROLL
                for (int n = 0; n < NV; ++n) {
                    ahead.share<lines>(n, NV);
                    const F<L> x = S::rounded(KeyRows::template load<Isa, L>(key, c + n * L));
                    HEED_UNROLL
                    for (int r = 0; r < R; ++r) {
                        const F<L> y = S::load(q + r * stride + c + n * L);
                        part[r] = KeyRows::Product::template add<Isa, L>(part[r], x, y);
                    }
                }
                ahead.advance<lines>();
            }
        };
        columns.template operator()<8>();
        columns.template operator()<4>();
        columns.template operator()<2>();
        columns.template operator()<1>();
    }

    /// sums += weights V, some columns at a time: by now V is in the second-level cache.
    template <class ValueRows, int R>
    static HEED_INLINE void add_values(const Stream& stream, const RowRun& v, const Group& group, RowPrefetch& ahead) {
        constexpr bool many_registers = Isa::registers >= 32;
        constexpr int widest = many_registers && R == 1 ? 8 : 4;
        const std::int64_t stride = round_up(stream.call.value_size, L);
        const auto vectors = static_cast<int>(stride / L);
        int first = 0;
        const auto columns = [&]<int NV>() __attribute__((always_inline)) {
            constexpr int rows = smaller(R, many_registers || NV < 4 ? 4 : 2);
            for (; first + NV <= vectors; first += NV) {
                HEED_UNROLL
                for (int r = 0; r < R; r += rows) {
                    add_some<ValueRows, rows, NV>(v, group, r, stream.scratch.sums + r * stride, stride, first, ahead);
                }
            }
        };
        columns.template operator()<widest>();
        columns.template operator()<widest / 2>();
        columns.template operator()<1>();
    }

    template <class ValueRows, int R, int NV>
    static HEED_INLINE void add_some(const RowRun& v, const Group& group, int row, float* sums, std::int64_t stride,
                                     int first, RowPrefetch& ahead) {
        F<L> sum[R][NV];
        HEED_UNROLL
        for (int r = 0; r < R; ++r) {
            HEED_UNROLL
            for (int n = 0; n < NV; ++n) { sum[r][n] = S::load(sums + r * stride + (first + n) * L); }
        }
        using Product = typename ValueRows::Product;
        constexpr bool interleaved = Product::depth_per_lane == 2;
        constexpr int lines = NV * L * ValueRows::bytes * Product::depth_per_lane / 64;
        for (std::int64_t j = 0; j < L; j += Product::depth_per_lane) {
            const char* value = v.first + j * v.step;
            F<L> w[R];
            HEED_UNROLL
            for (int r = 0; r < R; ++r) {
                w[r] = S::all(interleaved ? group.pairs[row + r][j / 2] : group.weights[row + r][j]);
            }
            HEED_UNROLL
            for (int n = 0; n < NV; ++n) {
                if (row == 0) { ahead.share<lines>(n, NV); }
                F<L> x;
                if constexpr (interleaved) {
                    x = S::rounded(ValueRows::template load_pair<Isa, L>(value, value + v.step, first + n));
                } else {
                    x = S::rounded(ValueRows::template load<Isa, L>(value, (first + n) * L));
                }
                HEED_UNROLL
                for (int r = 0; r < R; ++r) { sum[r][n] = Product::template add<Isa, L>(sum[r][n], x, w[r]); }
            }
            if (row == 0) { ahead.advance<lines>(); }
        }
        HEED_UNROLL
        for (int r = 0; r < R; ++r) {
            HEED_UNROLL
            for (int n = 0; n < NV; ++n) { S::store(sums + r * stride + (first + n) * L, sum[r][n]); }
        }
    }

    template <class ValueRows>
    static bool are_finite(const RowRun& v, std::int64_t columns) {
        if (ValueRows::scaled) { return true; }
        F<L> zero = {};  // x - x is NaN unless x is finite
        for (int j = 0; j < L; ++j) {
            for (std::int64_t e = 0; e < columns; e += L) {
                const F<L> x = ValueRows::template load<Isa, L>(v.first + j * v.step, e);
                zero += S::rounded(x) - x;
            }
        }
        return S::every(zero == F<L>{});
    }

    /// The same as add_values, passing over what is hidden.
    template <class ValueRows>
    static void add_seen_values(const Stream& stream, const RowRun& v, const Group& group) {
        const std::int64_t stride = round_up(stream.call.value_size, L);
        for (int r = 0; r < stream.tile.rows; ++r) {
            float* sums = stream.scratch.sums + r * stride;
            for (int j = 0; j < L; ++j) {
                if (group.seen[r][j] == 0) { continue; }
                const char* value = v.first + j * v.step;
                const float w = group.weights[r][j];
                if constexpr (ValueRows::Product::depth_per_lane == 2) {
                    const auto* words = reinterpret_cast<const std::uint16_t*>(value);
                    for (std::int64_t e = 0; e < stride; ++e) { sums[ValueRows::place(e)] += w * widen_bf16(words[e]); }
                    continue;
                }
                for (std::int64_t e = 0; e < stride; e += L) {
                    S::store(sums + e, S::load(sums + e) + S::all(w) * ValueRows::template load<Isa, L>(value, e));
                }
            }
        }
    }
};

}  // namespace heed::cpu
