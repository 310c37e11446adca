#pragma once
#include "cuda/sm90/backward_general_tiles.cuh"
#include "cuda/sm90/backward_keys.cuh"

namespace heed::cuda::sm90 {
namespace {

// ---- dk and dv: own rows are keys ----------------------------------------------------------------------------------

/// Where the warp that copies is in its walk over the heads of a group and their tiles of queries.
struct Walk {
    int member, tile;  ///< member: the group's size at the end
    bool mixed;
};
template <class S>
__device__ Walk next_queries(const GeneralCall& g, const Work& work, Walk walk) {
    const int lane = static_cast<int>(threadIdx.x) % 32, group = static_cast<int>(g.call.group);
    ++walk.tile;
    walk.mixed = false;
    for (; walk.member < group; ++walk.member, walk.tile = work.tile_begin) {
        if (g.squares.flags == nullptr) {
            if (walk.tile < work.tile_end) { return walk; }
            continue;
        }
        for (int first = walk.tile; first < work.tile_end; first += 32) {
            const int mine = first + lane;
            const unsigned flags = mine >= work.tile_end
                                       ? 0
                                       : flags_of(g.squares, work, work.head + walk.member, mine * S::other_tile,
                                                  work.first, S::other_tile, own_tile);
            const unsigned found = __ballot_sync(~0U, (flags & Squares::some_seen) != 0);
            const unsigned hiding = __ballot_sync(~0U, (flags & Squares::some_hidden) != 0);
            if (found != 0) {
                const int at = __ffs(static_cast<int>(found)) - 1;
                return {walk.member, first + at, (hiding >> at & 1U) != 0};
            }
        }
    }
    return walk;
}

template <class S>
__device__ void find_general_key_work(const GeneralCall& g, int tile, Work& work) {
    find_key_work<S>(g.call, g.order, tile, work);
    if (has_positions(g.call)) {
        work.tile_begin = 0;
        work.tile_end = work.first < work.keys ? (work.queries + S::other_tile - 1) / S::other_tile : 0;
        work.whole_begin = work.first + own_tile > work.keys ? 1 << 30 : 0;
        work.whole_end = work.queries / S::other_tile;
    }
}

template <class S>
__device__ void copy_queries(GeneralMemory<S>& memory, const GeneralMaps& maps, const GeneralCall& g, const Work& work,
                             int stage, int which, const Step& step) {
    Memory<S>& m = memory.common;
    Barrier& full = m.full[which][stage];
    if (which == 0) { memory.common.step[stage] = step; }
    barrier_arrive_expect(full,
                          S::parts * S::other_tile * 128 + S::other_tile * 4 + (which == 0 ? bias_bytes<S>(g) : 0));
    for (int part = 0; part < S::parts; ++part) {
        copy_box(m.other[which][stage][part], which == 0 ? maps.tensors.score[1] : maps.tensors.value[1], full,
                 64 * part, work.query_begin + step.tile * S::other_tile, step.head, work.batch);
    }
    if (which == 0 && g.bias_is_copied) {
        copy_bias<S>(memory, maps, g, full, stage, 2, step.tile * S::other_tile, work.first, step.head, work.entry);
    }
    const std::int64_t plane = static_cast<std::int64_t>(work.entry) * g.call.heads + step.head;
    const float* rows = (which == 0 ? g.scratch.lse : g.scratch.delta) + plane * g.padded_rows + step.tile * 64;
    copy_line(which == 0 ? m.lse[stage] : m.delta[stage], rows, S::other_tile * 4, full);
}

template <class S>
__device__ void produce_for_keys(GeneralMemory<S>& memory, const GeneralMaps& maps, const GeneralCall& g,
                                 int* counter) {
    Memory<S>& m = memory.common;
    const bool leads = threadIdx.x == 0;
    const int group = static_cast<int>(g.call.group);
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
        if (leads && !end) { find_general_key_work<S>(g, tile, work); }
        __syncwarp();
        Walk walk{group, 0, false};
        if (!end && !work.nothing()) {
            walk = next_queries<S>(g, work, {0, work.tile_begin - 1, false});
            __syncwarp();
            if (leads && walk.member >= group) { work.tile_end = work.tile_begin; }
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
                const int row = work.key_begin + work.first;
                copy_box(m.own[own.stage][0][part], maps.tensors.score[0], own_full, 64 * part, row, work.kv_head,
                         work.batch);
                copy_box(m.own[own.stage][1][part], maps.tensors.value[0], own_full, 64 * part, row, work.kv_head,
                         work.batch);
            }
        }
        own.advance();
        while (walk.member < group) {
            const Walk next = next_queries<S>(g, work, walk);
            const Step step{walk.tile,  work.head + walk.member,
                            work.entry, walk.tile < work.whole_begin || walk.tile >= work.whole_end,
                            walk.mixed, next.member >= group};
            for (int which = 0; which < 2; ++which) {
                barrier_wait(m.empty[which][ring.stage], ring.phase ^ 1);
                if (leads) { copy_queries<S>(memory, maps, g, work, ring.stage, which, step); }
            }
            ring.advance();
            walk = next;
        }
        __syncwarp();
    }
}

/// Queries [begin, end) that see key j; everything where positions are explicit.
__device__ inline Seen queries_seeing(const AttentionCall& c, const Work& work, int j) {
    return has_positions(c) ? Seen{0, j < work.keys ? work.queries : 0} : seeing(c, work, j);
}

/// Keys down, queries across. Scores are turned into weights before the other product begins: there are no registers
/// for both.
template <class S>
__device__ void gather_keys(GeneralMemory<S>& memory, const GeneralCall& g, const Work& work, Ring<stages>& ring,
                            int own_stage, float (&dk)[S::size / 2], float (&dv)[S::size / 2]) {
    constexpr int tile = S::other_tile;
    Memory<S>& m = memory.common;
    const AttentionCall& c = g.call;
    const int warpgroup = static_cast<int>(threadIdx.x) / 128 - 1, column = static_cast<int>(threadIdx.x) % 4 * 2;
    const int row =
        work.first + (static_cast<int>(threadIdx.x) - 128) / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
    const auto* own_k = &m.own[own_stage][0][0][64 * warpgroup];
    const auto* own_v = &m.own[own_stage][1][0][64 * warpgroup];
    float s[tile / 2];
    barrier_wait(m.full[0][ring.stage], ring.phase);
    wgmma_fence();
    multiply_rows<S, tile>(s, own_k, own_tile, m.other[0][ring.stage], tile);
    wgmma_commit();
    wgmma_wait<0>();
    for (;;) {
        std::uint32_t p[tile / 4], weight[tile / 4], ds[tile / 4];  // in 16 bits: registers are scarce
        Bits kept{{~0U, ~0U}};
        {
            const Step step = m.step[ring.stage];
            const Spot<true> spot{row, step.tile * tile + column};
            std::uint32_t slope_of_cap[tile / 4];
            score_tile<tile / 2>(
                c, work, step, spot, [&](int key) { return queries_seeing(c, work, key); },
                g.bias_is_copied ? memory.bias[ring.stage] : nullptr, s, slope_of_cap);
#pragma unroll
            for (int n = 0; n < tile / 2; ++n) {
                s[n] = exp2_fast(s[n] - m.lse[ring.stage][n / 4 * 8 + column + n % 2]);
            }
#pragma unroll
            for (int n = 0; n < tile / 4; ++n) { p[n] = packed<S::type>(s[2 * n], s[2 * n + 1]); }
            if (c.softcap > 0) {
#pragma unroll
                for (int n = 0; n < tile / 2; ++n) { s[n] *= unpacked<Half::f16>(slope_of_cap, n); }
            }
#pragma unroll
            for (int n = 0; n < tile / 4; ++n) { weight[n] = packed<S::type>(s[2 * n], s[2 * n + 1]); }
            if (c.drops) {
                // Not while products run, as in the other sweep: there are no registers for both.
                kept = kept_bits<tile / 2>(c, work, step.head, spot);
#pragma unroll
                for (int n = 0; n < tile / 4; ++n) {
                    p[n] &= (kept(2 * n) ? 0xFFFFU : 0U) | (kept(2 * n + 1) ? 0xFFFF0000U : 0U);
                }
            }
        }
        float dp[tile / 2];
        barrier_wait(m.full[1][ring.stage], ring.phase);
        wgmma_fence();
        multiply_rows<S, tile>(dp, own_v, own_tile, m.other[1][ring.stage], tile);
        multiply_columns<S, tile>(dv, p, m.other[1][ring.stage]);
        wgmma_commit();
        wgmma_wait<0>();
        if (c.drops) {
            const float factor = c.drop_factor;
#pragma unroll
            for (int n = 0; n < tile / 2; ++n) { dp[n] = kept(n) ? dp[n] * factor : 0.0F; }
        }
#pragma unroll
        for (int n = 0; n < tile / 2; ++n) {
            const float w = unpacked<S::type>(weight, n);
            dp[n] = w == 0 ? 0.0F : w * (dp[n] - m.delta[ring.stage][n / 4 * 8 + column + n % 2]);
        }
#pragma unroll
        for (int n = 0; n < tile / 4; ++n) { ds[n] = packed<S::type>(dp[2 * n], dp[2 * n + 1]); }
        const int now = ring.stage;
        ring.advance();
        if (static_cast<const volatile Step&>(m.step[now]).last) {  // read again: a register less through the products
            wgmma_fence();
            multiply_columns<S, tile>(dk, ds, m.other[0][now]);
            wgmma_commit();
            wgmma_wait<0>();
            __syncwarp();  // every lane has read the step, lse, delta and the bias
            release(m.empty[0][now]);
            release(m.empty[1][now]);
            return;
        }
        barrier_wait(m.full[0][ring.stage], ring.phase);
        wgmma_fence();
        multiply_columns<S, tile>(dk, ds, m.other[0][now]);
        multiply_rows<S, tile>(s, own_k, own_tile, m.other[0][ring.stage], tile);
        wgmma_commit();
        wgmma_wait<0>();
        __syncwarp();
        release(m.empty[0][now]);
        release(m.empty[1][now]);
    }
}

template <class S>
__global__ void __launch_bounds__(threads, 1)
    general_keys(const __grid_constant__ GeneralMaps maps, const __grid_constant__ GeneralCall g, int* counter) {
    extern __shared__ char raw[];
    auto& memory = aligned_memory<GeneralMemory<S>>(raw);
    Memory<S>& m = memory.common;
    const AttentionCall& c = g.call;
    init_barriers(m);
    if (threadIdx.x < 128) {
        fewer_registers<40>();
        if (threadIdx.x < 32) {
            produce_for_keys<S>(memory, maps, g, counter);
            if (threadIdx.x == 0) { finish_counter(counter); }
        }
        return;
    }
    more_registers<232>();
    Ring<stages> ring;
    Ring<2> slot;
    Ring<S::own_stages> own;
    const int warpgroup = static_cast<int>(threadIdx.x) / 128 - 1;
    for (;;) {
        barrier_wait(m.tile_full[slot.stage], slot.phase);
        const Work& work = m.work[slot.stage];
        if (work.tile < 0) { break; }
        float dk[S::size / 2], dv[S::size / 2];
#pragma unroll
        for (int n = 0; n < S::size / 2; ++n) { dk[n] = dv[n] = 0; }
        if (!work.nothing()) {
            barrier_wait(m.own_full[own.stage], own.phase);
            gather_keys<S>(memory, g, work, ring, own.stage, dk, dv);
            release(m.own_empty[own.stage]);
            own.advance();
        }
        const bool k_finite = store_gradient<S>(c.dk, dk, static_cast<float>(c.scale), work.batch, work.kv_head,
                                                work.key_begin, work.first + 64 * warpgroup, work.rows, work.keys);
        const bool v_finite = store_gradient<S>(c.dv, dv, c.drop_factor, work.batch, work.kv_head, work.key_begin,
                                                work.first + 64 * warpgroup, work.rows, work.keys);
        const TileNumber number = tile_number(g.order, work.tile);
        put_flag(g.scratch.keys_flag + static_cast<std::int64_t>(number.plane) * (g.order.rows_tiles * 2) +
                     work.first / 64 + warpgroup,
                 g.scratch.spoilt, k_finite && v_finite, warpgroup);
        barrier_arrive(m.tile_empty[slot.stage]);
        slot.advance();
    }
}

}  // namespace
}  // namespace heed::cuda::sm90
