#pragma once
#include "cuda/sm90/backward_general_tiles.cuh"

namespace heed::cuda::sm90 {
namespace {

// ---- dq, and what each row adds to the gradient of its slope -------------------------------------------------------

/// The next tile of keys before `tile` that has anything to see, looked for by the whole warp; below tile_begin: none.
template <class S>
__device__ int next_keys(const Squares& squares, const Work& work, int tile, bool& mixed) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    mixed = false;
    if (squares.flags == nullptr) { return tile - 1; }
    for (int last = tile - 1; last >= work.tile_begin; last -= 32) {
        const int mine = last - lane;
        const unsigned flags = mine < work.tile_begin ? 0
                                                      : flags_of(squares, work, work.head, work.first,
                                                                 mine * S::other_tile, own_tile, S::other_tile);
        const unsigned found = __ballot_sync(~0U, (flags & Squares::some_seen) != 0);
        const unsigned hiding = __ballot_sync(~0U, (flags & Squares::some_hidden) != 0);
        if (found != 0) {
            const int first = __ffs(static_cast<int>(found)) - 1;
            mixed = (hiding >> first & 1U) != 0;
            return last - first;
        }
    }
    return work.tile_begin - 1;
}

template <class S>
__device__ void find_query_work(const GeneralCall& g, int tile, Work& work) {
    find_work<own_tile, S::other_tile>(g.call, g.order, tile, work);
    if (has_positions(g.call)) {  // no row knows where its keys are
        work.tile_begin = work.whole_begin = 0;
        work.tile_end = work.first < work.queries ? (work.keys + S::other_tile - 1) / S::other_tile : 0;
        work.whole_end = work.keys / S::other_tile;
    }
}

template <class S>
__device__ void produce_for_queries(GeneralMemory<S>& memory, const GeneralMaps& maps, const GeneralCall& g,
                                    int* counter) {
    Memory<S>& m = memory.common;
    const bool leads = threadIdx.x == 0;
    Ring<stages> ring;
    Ring<2> slot;
    Ring<S::own_stages> own;
    for (;;) {
        int tile = 0;
        if (leads) { tile = atomicAdd(counter, 1); }
        tile = __shfl_sync(~0U, tile, 0);
        barrier_wait(m.tile_empty[slot.stage], slot.phase ^ 1);
        Work& work = m.work[slot.stage];
        const bool end = tile >= g.order.rows_tiles * g.order.planes;
        if (leads && end) { work.tile = -1; }
        if (leads && !end) { find_query_work<S>(g, tile, work); }
        __syncwarp();
        bool mixed = false;
        int n = -1;
        if (!end && !work.nothing()) {
            n = next_keys<S>(g.squares, work, work.tile_end, mixed);
            __syncwarp();
            if (leads && n < work.tile_begin) { work.tile_end = work.tile_begin; }
        }
        __syncwarp();
        if (leads) { barrier_arrive(m.tile_full[slot.stage]); }
        slot.advance();
        if (end) { return; }
        if (work.nothing()) { continue; }
        barrier_wait(m.own_empty[own.stage], own.phase ^ 1);
        if (leads) {
            Barrier& own_full = m.own_full[own.stage];
            barrier_arrive_expect(own_full, 2 * S::parts * own_tile * 128);
            for (int part = 0; part < S::parts; ++part) {
                const int row = work.query_begin + work.first;
                copy_box(m.own[own.stage][0][part], maps.tensors.score[0], own_full, 64 * part, row, work.head,
                         work.batch);
                copy_box(m.own[own.stage][1][part], maps.tensors.value[0], own_full, 64 * part, row, work.head,
                         work.batch);
            }
        }
        own.advance();
        const int tile_begin = work.tile_begin;
        while (n >= tile_begin) {
            bool next_mixed = false;
            const int next = next_keys<S>(g.squares, work, n, next_mixed);
            for (int which = 0; which < 2; ++which) {
                barrier_wait(m.empty[which][ring.stage], ring.phase ^ 1);
                if (!leads) { continue; }
                if (which == 0) {
                    memory.common.step[ring.stage] = {n,          work.head,
                                                      work.entry, n >= work.whole_end || n < work.whole_begin,
                                                      mixed,      next < tile_begin};
                }
                Barrier& full = m.full[which][ring.stage];
                barrier_arrive_expect(full, S::parts * S::other_tile * 128 + (which == 0 ? bias_bytes<S>(g) : 0));
                for (int part = 0; part < S::parts; ++part) {
                    copy_box(m.other[which][ring.stage][part],
                             which == 0 ? maps.tensors.score[1] : maps.tensors.value[1], full, 64 * part,
                             work.key_begin + n * S::other_tile, work.kv_head, work.batch);
                }
                if (which == 0 && g.bias_is_copied) {
                    copy_bias<S>(memory, maps, g, full, ring.stage, 1, work.first, n * S::other_tile, work.head,
                                 work.entry);
                }
            }
            ring.advance();
            n = next;
            mixed = next_mixed;
        }
        __syncwarp();
    }
}

/// Of a thread's two queries.
struct QueryRows {
    float lse[2], delta[2], dslope[2];
};

/// dx of a tile from both its products, in dp: queries down, keys across. With `slopes`, what it adds to the gradient
/// of the slope is added, and the derivative of the soft-cap is in.
template <int count, bool whole>
__device__ inline void differentiate(const AttentionCall& c, const Work& work, const Step& step, Spot<false> spot,
                                     QueryRows& rows, Bits kept, const std::uint16_t* bias_tile, float (&s)[count],
                                     float (&dp)[count]) {
    std::uint32_t slope_of_cap[count / 2];
    score_tile<count>(
        c, work, step, spot, [&](int i) { return keys_seen(c, work, i); }, bias_tile, s, slope_of_cap);
    if (c.drops) {
        const float factor = c.drop_factor;
#pragma unroll
        for (int n = 0; n < count; ++n) { dp[n] = kept(n) ? dp[n] * factor : 0.0F; }
    }
#pragma unroll
    for (int n = 0; n < count; ++n) {
        const int r = n % 4 / 2;
        const float p = exp2_fast(s[n] - rows.lse[r]);
        // 0 times what is not finite: a key that is hidden, or a row that is none.
        bool nothing = p == 0;
        if constexpr (!whole) {  // nor what is hidden in a row of NaN
            nothing = nothing || s[n] == -__builtin_huge_valf() || rows.lse[r] == __builtin_huge_valf();
        }
        dp[n] = nothing ? 0.0F : p * (dp[n] - rows.delta[r]);
    }
    if constexpr (whole) {
        if (c.row_dslope != nullptr) {
            each_distance<count>(c, work, spot,
                                 [&](int n, float distance) { rows.dslope[n % 4 / 2] -= dp[n] * distance; });
        }
        if (c.softcap > 0) {
#pragma unroll
            for (int n = 0; n < count; ++n) { dp[n] *= unpacked<Half::f16>(slope_of_cap, n); }
        }
    }
}

template <class S>
__device__ void gather_queries(GeneralMemory<S>& memory, const GeneralCall& g, const Work& work, Ring<stages>& ring,
                               int own_stage, QueryRows& rows, float (&dq)[S::size / 2]) {
    constexpr int tile = S::other_tile;
    Memory<S>& m = memory.common;
    const int warpgroup = static_cast<int>(threadIdx.x) / 128 - 1;
    const int row =
        work.first + (static_cast<int>(threadIdx.x) - 128) / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
    const int column = static_cast<int>(threadIdx.x) % 4 * 2;
    const auto* own_q = &m.own[own_stage][0][0][64 * warpgroup];
    const auto* own_dout = &m.own[own_stage][1][0][64 * warpgroup];
    float s[tile / 2], dp[tile / 2];
    std::uint32_t ds[tile / 4];
    barrier_wait(m.full[0][ring.stage], ring.phase);
    barrier_wait(m.full[1][ring.stage], ring.phase);
    wgmma_fence();
    multiply_rows<S, tile>(s, own_q, own_tile, m.other[0][ring.stage], tile);
    multiply_rows<S, tile>(dp, own_dout, own_tile, m.other[1][ring.stage], tile);
    wgmma_commit();
    Step step = m.step[ring.stage];
    Spot<false> spot{row, step.tile * tile + column};
    Bits kept = kept_beside<tile / 2>(g.call, work, step, spot);
    wgmma_wait<0>();
    for (;;) {
        release(m.empty[1][ring.stage]);
        differentiate<tile / 2, true>(g.call, work, step, spot, rows, kept,
                                      g.bias_is_copied ? memory.bias[ring.stage] : nullptr, s, dp);
#pragma unroll
        for (int n = 0; n < tile / 4; ++n) { ds[n] = packed<S::type>(dp[2 * n], dp[2 * n + 1]); }
        const int now = ring.stage;
        ring.advance();
        if (step.last) {
            wgmma_fence();
            multiply_columns<S, tile>(dq, ds, m.other[0][now]);
            wgmma_commit();
            wgmma_wait<0>();
            __syncwarp();  // every lane has read the step and the bias
            release(m.empty[0][now]);
            return;
        }
        barrier_wait(m.full[0][ring.stage], ring.phase);
        barrier_wait(m.full[1][ring.stage], ring.phase);
        wgmma_fence();
        multiply_columns<S, tile>(dq, ds, m.other[0][now]);
        multiply_rows<S, tile>(s, own_q, own_tile, m.other[0][ring.stage], tile);
        multiply_rows<S, tile>(dp, own_dout, own_tile, m.other[1][ring.stage], tile);
        wgmma_commit();
        step = m.step[ring.stage];
        spot.column = step.tile * tile + column;
        kept = kept_beside<tile / 2>(g.call, work, step, spot);
        wgmma_wait<0>();
        __syncwarp();
        release(m.empty[0][now]);
    }
}

template <class S>
__global__ void __launch_bounds__(threads, 1)
    general_queries(const __grid_constant__ GeneralMaps maps, const __grid_constant__ GeneralCall g, int* counter) {
    extern __shared__ char raw[];
    auto& memory = aligned_memory<GeneralMemory<S>>(raw);
    Memory<S>& m = memory.common;
    const AttentionCall& c = g.call;
    init_barriers(m);
    if (threadIdx.x < 128) {
        fewer_registers<40>();
        if (threadIdx.x < 32) {
            produce_for_queries<S>(memory, maps, g, counter);
            if (threadIdx.x == 0) { finish_counter(counter); }
        }
        return;
    }
    more_registers<232>();
    Ring<stages> ring;
    Ring<2> slot;
    Ring<S::own_stages> own;
    const int warpgroup = static_cast<int>(threadIdx.x) / 128 - 1;
    const int row_in_tile = (static_cast<int>(threadIdx.x) - 128) / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
    for (;;) {
        barrier_wait(m.tile_full[slot.stage], slot.phase);
        const Work& work = m.work[slot.stage];
        if (work.tile < 0) { break; }
        float dq[S::size / 2];
        QueryRows rows;
        const TileNumber number = tile_number(g.order, work.tile);
        const std::int64_t first_row = static_cast<std::int64_t>(number.plane) * g.padded_rows + work.first;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            rows.lse[r] = g.scratch.lse[first_row + row_in_tile + 8 * r];
            rows.delta[r] = g.scratch.delta[first_row + row_in_tile + 8 * r];
            rows.dslope[r] = 0;
        }
#pragma unroll
        for (int n = 0; n < S::size / 2; ++n) { dq[n] = 0; }
        if (!work.nothing()) {
            barrier_wait(m.own_full[own.stage], own.phase);
            gather_queries<S>(memory, g, work, ring, own.stage, rows, dq);
            release(m.own_empty[own.stage]);
            own.advance();
        }
        bool finite = store_gradient<S>(c.dq, dq, static_cast<float>(c.scale), work.batch, work.head, work.query_begin,
                                        work.first + 64 * warpgroup, work.rows, work.queries);
        if (c.row_dslope != nullptr) {
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                float sum = rows.dslope[r];
                sum += __shfl_xor_sync(~0U, sum, 1);
                sum += __shfl_xor_sync(~0U, sum, 2);
                finite = finite && fabsf(sum) <= 3.4028234e38F;
                if (threadIdx.x % 4 == 0) { static_cast<float*>(c.row_dslope)[first_row + row_in_tile + 8 * r] = sum; }
            }
        }
        put_flag(g.scratch.queries_flag + static_cast<std::int64_t>(number.plane) * (g.padded_rows / 64) +
                     work.first / 64 + warpgroup,
                 g.scratch.spoilt, finite, warpgroup);
        barrier_arrive(m.tile_empty[slot.stage]);
        slot.advance();
    }
}

}  // namespace
}  // namespace heed::cuda::sm90
