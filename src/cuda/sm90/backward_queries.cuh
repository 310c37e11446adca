#pragma once
#include "cuda/sm90/backward_tiles.cuh"

namespace heed::cuda::sm90 {
namespace {

// ---- dq: own rows are queries --------------------------------------------------------------------------------------

template <class S>
__device__ void produce_for_queries(Memory<S>& m, const Maps& maps, const AttentionCall& c, const TileOrder& order,
                                    int* counter) {
    Ring<stages> ring;
    Ring<2> slot;
    Ring<S::own_stages> own;
    for (;;) {
        const int tile = atomicAdd(counter, 1);
        barrier_wait(m.tile_empty[slot.stage], slot.phase ^ 1);
        Work& work = m.work[slot.stage];
        const bool last = tile >= order.rows_tiles * order.planes;
        if (last) {
            work.tile = -1;
        } else {
            find_work<own_tile, S::other_tile>(c, order, tile, work);
        }
        barrier_arrive(m.tile_full[slot.stage]);
        slot.advance();
        if (last) { return; }
        if (work.nothing()) { continue; }
        barrier_wait(m.own_empty[own.stage], own.phase ^ 1);
        Barrier& own_full = m.own_full[own.stage];
        barrier_arrive_expect(own_full, 2 * S::parts * own_tile * 128);
        for (int part = 0; part < S::parts; ++part) {
            const int row = work.query_begin + work.first;
            copy_box(m.own[own.stage][0][part], maps.score[0], own_full, 64 * part, row, work.head, work.batch);
            copy_box(m.own[own.stage][1][part], maps.value[0], own_full, 64 * part, row, work.head, work.batch);
        }
        own.advance();
        for (int n = work.tile_end - 1; n >= work.tile_begin; --n) {
            for (int which = 0; which < 2; ++which) {
                barrier_wait(m.empty[which][ring.stage], ring.phase ^ 1);
                Barrier& full = m.full[which][ring.stage];
                barrier_arrive_expect(full, S::parts * S::other_tile * 128);
                for (int part = 0; part < S::parts; ++part) {
                    copy_box(m.other[which][ring.stage][part], which == 0 ? maps.score[1] : maps.value[1], full,
                             64 * part, work.key_begin + n * S::other_tile, work.kv_head, work.batch);
                }
            }
            ring.advance();
        }
    }
}

template <class S>
struct QueriesConsumer {
    Memory<S>& m;
    const AttentionCall& c;
    float scale;  ///< times log2(e)
    Ring<stages> ring{};
    int own_stage = 0;
    std::uint32_t plane = 0;  ///< of dropout's generator
    int row = 0;              ///< the thread's first

    /// The tensor cores still have dq of the step before to do when a step begins.
    template <bool masked>
    __device__ void step(float (&dq)[S::size / 2], std::uint32_t (&ds)[S::other_tile / 4], const float (&lse)[2],
                         const float (&delta)[2], const Seen (&seen)[2], int first_key, bool begun) {
        constexpr int tile = S::other_tile;
        const int warpgroup = static_cast<int>(threadIdx.x) / 128 - 1;
        float s[tile / 2], dp[tile / 2];
        barrier_wait(m.full[0][ring.stage], ring.phase);
        wgmma_fence();
        multiply_rows<S, tile>(s, &m.own[own_stage][0][0][64 * warpgroup], own_tile, m.other[0][ring.stage], tile);
        wgmma_commit();
        barrier_wait(m.full[1][ring.stage], ring.phase);
        wgmma_fence();
        multiply_rows<S, tile>(dp, &m.own[own_stage][1][0][64 * warpgroup], own_tile, m.other[1][ring.stage], tile);
        wgmma_commit();
        const int column = first_key + static_cast<int>(threadIdx.x) % 4 * 2;
        Bits keeps;
        if constexpr (S::drops) {
            keeps = random_bits<tile / 2>(c, plane, Spot<false>{row, column});
            barrier_wait(m.full[1][ring.stage], ring.phase);  // long there; the random words come before the next line
        }
        wgmma_wait<1>();
        if (begun) { release(m.empty[0][ring.stage ^ 1]); }
#pragma unroll
        for (int n = 0; n < tile / 2; ++n) {
            const int r = n % 4 / 2;
            s[n] = exp2_fast(s[n] * scale - lse[r]);
            if constexpr (masked) {
                const int key = column + n / 4 * 8 + n % 2;
                if (key < seen[r].begin || key >= seen[r].end) { s[n] = 0; }
            }
        }
        barrier_wait(m.full[1][ring.stage], ring.phase);  // long there; it keeps the next line behind the exponentials
        wgmma_wait<0>();
        release(m.empty[1][ring.stage]);
#pragma unroll
        for (int n = 0; n < tile / 2; ++n) {
            if constexpr (S::drops) { dp[n] = keeps(n) ? dp[n] * c.drop_factor : 0.0F; }
            float d = s[n] * (dp[n] - delta[n % 4 / 2]);
            // 0 times what is not finite: a key that is hidden, or a row that is none.
            if (masked) { d = s[n] == 0 ? 0.0F : d; }
            dp[n] = d;
        }
#pragma unroll
        for (int n = 0; n < tile / 4; ++n) { ds[n] = packed<S::type>(dp[2 * n], dp[2 * n + 1]); }
        wgmma_fence();
        multiply_columns<S, tile>(dq, ds, m.other[0][ring.stage]);
        wgmma_commit();
        ring.advance();
    }
};

template <class S>
__global__ void __launch_bounds__(threads, 1)
    backward_queries(const __grid_constant__ Maps maps, const __grid_constant__ AttentionCall c,
                     const __grid_constant__ TileOrder order, const __grid_constant__ BackwardScratch scratch,
                     int padded_rows, int* counter) {
    extern __shared__ char memory[];
    auto& m = aligned_memory<Memory<S>>(memory);
    init_barriers(m);
    if (threadIdx.x < 128) {
        fewer_registers<producer_registers>();
        if (threadIdx.x == 0) {
            produce_for_queries<S>(m, maps, c, order, counter);
            finish_counter(counter);
        }
        return;
    }
    more_registers<consumer_registers>();
    QueriesConsumer<S> consumer{m, c, static_cast<float>(c.scale * 1.4426950408889634)};
    Ring<2> slot;
    Ring<S::own_stages> own;
    const int warpgroup = static_cast<int>(threadIdx.x) / 128 - 1;
    const int row_in_tile = (static_cast<int>(threadIdx.x) - 128) / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
    for (;;) {
        barrier_wait(m.tile_full[slot.stage], slot.phase);
        const Work& work = m.work[slot.stage];
        if (work.tile < 0) { break; }
        float dq[S::size / 2], lse[2], delta[2];
        Seen seen[2];
        const TileNumber number = tile_number(order, work.tile);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int row = work.first + row_in_tile + 8 * r;
            seen[r] = seen_by(c, work, row);
            lse[r] = scratch.lse[static_cast<std::int64_t>(number.plane) * padded_rows + row];
            delta[r] = scratch.delta[static_cast<std::int64_t>(number.plane) * padded_rows + row];
        }
#pragma unroll
        for (int n = 0; n < S::size / 2; ++n) { dq[n] = 0; }
        if (!work.nothing()) {
            std::uint32_t ds[S::other_tile / 4];
            barrier_wait(m.own_full[own.stage], own.phase);
            consumer.own_stage = own.stage;
            if constexpr (S::drops) {
                consumer.plane = static_cast<std::uint32_t>(number.plane);
                consumer.row = work.first + row_in_tile;
            }
            bool begun = false;
            int n = work.tile_end - 1;
            for (; n >= max(work.tile_begin, work.whole_end); --n) {
                consumer.template step<true>(dq, ds, lse, delta, seen, n * S::other_tile, begun);
                begun = true;
            }
            for (; n >= max(work.tile_begin, work.whole_begin); --n) {
                consumer.template step<false>(dq, ds, lse, delta, seen, n * S::other_tile, begun);
                begun = true;
            }
            for (; n >= work.tile_begin; --n) {
                consumer.template step<true>(dq, ds, lse, delta, seen, n * S::other_tile, begun);
                begun = true;
            }
            wgmma_wait<0>();
            release(m.empty[0][consumer.ring.stage ^ 1]);
            release(m.own_empty[own.stage]);
            own.advance();
        }
        const bool finite = store_gradient<S>(c.dq, dq, static_cast<float>(c.scale), work.batch, work.head,
                                              work.query_begin, work.first + 64 * warpgroup, work.rows, work.queries);
        put_flag(scratch.queries_flag + static_cast<std::int64_t>(number.plane) * (padded_rows / 64) + work.first / 64 +
                     warpgroup,
                 scratch.spoilt, finite, warpgroup);
        barrier_arrive(m.tile_empty[slot.stage]);
        slot.advance();
    }
}

}  // namespace
}  // namespace heed::cuda::sm90
