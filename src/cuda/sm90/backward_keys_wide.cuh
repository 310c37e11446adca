#pragma once
/// The sweep over keys at head size 256, where dk and dv of 64 keys fill the registers of a warpgroup each. So one
/// warpgroup has the weights and dv, the other dP and dk, of the same keys, and the weights go from one to the other:
///
///     weights     [ S0 ] exp ....  [ dv0 ][ S1 ] exp ....  [ dv1 ][ S2 ]
///     gradients   [ dP0 ]      dS  [ dk0 ][ dP1 ]      dS  [ dk1 ]

#include "cuda/sm90/backward_keys.cuh"

namespace heed::cuda::sm90 {
namespace {

template <Half type>
using WideKeys = Shape<256, 64, type, 64>;

/// How the weights travel: those of bfloat16 tensors as float16, which has 12 bits where they are 2^-26 or more; those
/// of float16 tensors, for which that would show, as they are, through one buffer instead of two.
template <class S>
struct Travel {
    static constexpr bool exact = S::type == Half::f16;
    static constexpr int buffers = exact ? 1 : 2;
    static constexpr int at_once = exact ? 4 : 8;  ///< numbers in 16 bytes
    static constexpr float unit = exact ? 1 : 4096;

    __device__ static uint4 packed_weights(const float* s) {
        if constexpr (exact) {
            return make_uint4(__float_as_uint(s[0]), __float_as_uint(s[1]), __float_as_uint(s[2]),
                              __float_as_uint(s[3]));
        } else {
            return make_uint4(packed<Half::f16>(s[0] * unit, s[1] * unit), packed<Half::f16>(s[2] * unit, s[3] * unit),
                              packed<Half::f16>(s[4] * unit, s[5] * unit), packed<Half::f16>(s[6] * unit, s[7] * unit));
        }
    }
    __device__ static void unpack(uint4 four, float (&w)[at_once]) {
        const std::uint32_t words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            if constexpr (exact) {
                w[n] = __uint_as_float(words[n]);
            } else {
                asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h; }"
                    : "=f"(w[2 * n]), "=f"(w[2 * n + 1])
                    : "r"(words[n]));
            }
        }
    }
};

template <class S>
struct WideMemory : Memory<S> {
    /// Of a tile: each thread's 32 numbers. The thread of the same number in the other warpgroup reads them.
    uint4 weights[Travel<S>::buffers][S::other_tile / 2 / Travel<S>::at_once][128];
    Barrier weights_full[Travel<S>::buffers], weights_empty[Travel<S>::buffers];
};

template <class S>
struct WideConsumer {
    static constexpr int tile = S::other_tile;
    using Gradient = float[S::size / 2];
    using Packed = std::uint32_t[tile / 4];

    WideMemory<S>& m;
    float scale;
    Ring<stages> ring{};
    Ring<Travel<S>::buffers> travel{};

    /// The column of a thread's number n.
    __device__ static int column(int n) { return n / 4 * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + n % 2; }

    /// Weights and dv. The tensor cores still have dv of the step before to do when a step begins.
    template <bool masked>
    __device__ void weights_step(Gradient& dv, Packed& p, const Seen (&seen)[2], int first_query, bool begun) {
        float s[tile / 2];
        barrier_wait(m.full[0][ring.stage], ring.phase);
        wgmma_fence();
        multiply_rows<S, tile>(s, m.own[0][0], S::own_rows, m.other[0][ring.stage], tile);
        wgmma_commit();
        wgmma_wait<1>();
        if (begun) { release(m.empty[1][ring.stage ^ 1]); }
        wgmma_wait<0>();
#pragma unroll
        for (int n = 0; n < tile / 2; ++n) {
            s[n] = exp2_fast(s[n] * scale - m.lse[ring.stage][column(n)]);
            if constexpr (masked) {
                const int r = n % 4 / 2, query = first_query + column(n);
                if (query < seen[r].begin || query >= seen[r].end) { s[n] = 0; }
            }
        }
        __syncwarp();  // every lane has read lse
        release(m.empty[0][ring.stage]);
        barrier_wait(m.weights_empty[travel.stage], travel.phase ^ 1);
        constexpr int at_once = Travel<S>::at_once;
#pragma unroll
        for (int n = 0; n < tile / 2 / at_once; ++n) {
            m.weights[travel.stage][n][threadIdx.x % 128] = Travel<S>::packed_weights(s + at_once * n);
        }
        barrier_arrive(m.weights_full[travel.stage]);
        travel.advance();
#pragma unroll
        for (int n = 0; n < tile / 4; ++n) { p[n] = packed<S::type>(s[2 * n], s[2 * n + 1]); }
        barrier_wait(m.full[1][ring.stage], ring.phase);
        wgmma_fence();
        multiply_columns<S, tile>(dv, p, m.other[1][ring.stage]);
        wgmma_commit();
        ring.advance();
    }

    /// dP, dS and dk. The tensor cores still have dk of the step before to do when a step begins.
    template <bool masked>
    __device__ void gradients_step(Gradient& dk, Packed& ds, bool begun) {
        float dp[tile / 2];
        barrier_wait(m.full[1][ring.stage], ring.phase);
        wgmma_fence();
        multiply_rows<S, tile>(dp, m.own[0][1], S::own_rows, m.other[1][ring.stage], tile);
        wgmma_commit();
        wgmma_wait<1>();
        if (begun) { release(m.empty[0][ring.stage ^ 1]); }
        wgmma_wait<0>();
#pragma unroll
        for (int n = 0; n < tile / 2; ++n) {
            constexpr float unit = 1 / Travel<S>::unit;
            dp[n] = dp[n] * unit - m.delta[ring.stage][column(n)] * unit;
        }
        __syncwarp();  // every lane has read delta
        release(m.empty[1][ring.stage]);
        barrier_wait(m.weights_full[travel.stage], travel.phase);
        constexpr int at_once = Travel<S>::at_once;
#pragma unroll
        for (int n = 0; n < tile / 2 / at_once; ++n) {
            float w[at_once];
            Travel<S>::unpack(m.weights[travel.stage][n][threadIdx.x % 128], w);
#pragma unroll
            for (int e = 0; e < at_once; ++e) {
                float& d = dp[at_once * n + e];
                d = masked && w[e] == 0 ? 0.0F : w[e] * d;  // where nothing is seen, dP may be anything
            }
        }
        barrier_arrive(m.weights_empty[travel.stage]);
        travel.advance();
#pragma unroll
        for (int n = 0; n < tile / 4; ++n) { ds[n] = packed<S::type>(dp[2 * n], dp[2 * n + 1]); }
        barrier_wait(m.full[0][ring.stage], ring.phase);
        wgmma_fence();
        multiply_columns<S, tile>(dk, ds, m.other[0][ring.stage]);
        wgmma_commit();
        ring.advance();
    }
};

/// All tiles of the block, by the warpgroup that has the weights or by the other.
template <class S, bool weights>
__device__ void consume_wide(WideMemory<S>& m, const AttentionCall& c, const TileOrder& order,
                             const BackwardScratch& scratch) {
    WideConsumer<S> consumer{m, static_cast<float>(c.scale * 1.4426950408889634)};
    Ring<2> slot;
    Ring<1> own;
    const int row_in_tile = static_cast<int>(threadIdx.x) % 128 / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
    for (;;) {
        barrier_wait(m.tile_full[slot.stage], slot.phase);
        const Work& work = m.work[slot.stage];
        if (work.tile < 0) { break; }
        typename WideConsumer<S>::Gradient gradient;
#pragma unroll
        for (int n = 0; n < S::size / 2; ++n) { gradient[n] = 0; }
        if (!work.nothing()) {
            typename WideConsumer<S>::Packed operand;
            const Seen seen[2] = {seeing(c, work, work.first + row_in_tile),
                                  seeing(c, work, work.first + row_in_tile + 8)};
            barrier_wait(m.own_full[0], own.phase);
            each_query_tile<S>(work, static_cast<int>(c.group), [&](auto masked, int first_query, int, bool begun) {
                if constexpr (weights) {
                    consumer.template weights_step<masked.value>(gradient, operand, seen, first_query, begun);
                } else {
                    consumer.template gradients_step<masked.value>(gradient, operand, begun);
                }
            });
            wgmma_wait<0>();
            release(m.empty[weights ? 1 : 0][consumer.ring.stage ^ 1]);
            release(m.own_empty[0]);
            own.advance();
        }
        const bool finite =
            store_gradient<S>(weights ? c.dv : c.dk, gradient, weights ? 1.0F : static_cast<float>(c.scale), work.batch,
                              work.kv_head, work.key_begin, work.first, work.rows, work.keys);
        const TileNumber number = tile_number(order, work.tile);
        put_flag<256>(scratch.keys_flag + static_cast<std::int64_t>(number.plane) * order.rows_tiles + work.first / 64,
                      scratch.spoilt, finite, 0);
        barrier_arrive(m.tile_empty[slot.stage]);
        slot.advance();
    }
}

template <class S>
__global__ void __launch_bounds__(threads, 1)
    backward_keys_wide(const __grid_constant__ Maps maps, const __grid_constant__ AttentionCall c,
                       const __grid_constant__ TileOrder order, const __grid_constant__ BackwardScratch scratch,
                       int padded_rows, int* counter) {
    extern __shared__ char memory[];
    auto& m = aligned_memory<WideMemory<S>>(memory);
    if (threadIdx.x == 0) {
        for (int n = 0; n < Travel<S>::buffers; ++n) {
            barrier_init(m.weights_full[n], 128);
            barrier_init(m.weights_empty[n], 128);
        }
    }
    init_barriers(m);
    if (threadIdx.x < 128) {
        fewer_registers<producer_registers>();
        if (threadIdx.x == 0) {
            produce_for_keys<S>(m, maps, c, order, scratch, padded_rows, counter);
            finish_counter(counter);
        }
        return;
    }
    more_registers<consumer_registers>();
    if (threadIdx.x < 256) {
        consume_wide<S, true>(m, c, order, scratch);
    } else {
        consume_wide<S, false>(m, c, order, scratch);
    }
}

}  // namespace
}  // namespace heed::cuda::sm90
