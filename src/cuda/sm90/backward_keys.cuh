#pragma once
#include "cuda/sm90/backward_tiles.cuh"

namespace heed::cuda::sm90 {
namespace {

// ---- dk and dv: own rows are keys ----------------------------------------------------------------------------------

/// The queries that a tile of keys meets, in tiles of 64 from the first to the last, head after head of the group. In
/// Work: `first` is the first key, tile_begin to tile_end are tiles of queries, of which those before whole_begin and
/// from whole_end on are masked.
template <class S>
__device__ void find_key_work(const AttentionCall& c, const TileOrder& order, int tile, Work& work) {
    const TileNumber n = tile_number(order, tile);
    const int entry = n.plane / static_cast<int>(c.kv_heads);
    const Entry s = entry_of(c, entry);
    work.tile = tile;
    work.entry = entry;
    work.kv_head = n.plane - entry * static_cast<int>(c.kv_heads);
    work.head = work.kv_head * static_cast<int>(c.group);
    work.batch = static_cast<int>(s.batch);
    work.query_begin = static_cast<int>(s.query_begin);
    work.rows = static_cast<int>(s.key_rows);
    work.key_begin = static_cast<int>(s.key_begin);
    const int queries = work.queries = static_cast<int>(s.queries);
    const int keys = work.keys = static_cast<int>(s.keys);
    const int shift = work.shift = static_cast<int>(s.shift);
    const int first = work.first = n.rows * S::own_rows;
    const int last = min(first + S::own_rows, keys) - 1;
    const int right = reach_of(c.right), left = reach_of(c.left);
    // Query i sees key j where j - right <= i + shift <= j + left.
    const int begin = right < 0 ? 0 : max(first - shift - right, 0);
    const int end = left < 0 ? queries : min(queries, last - shift + left + 1);
    const int whole_begin = right < 0 ? 0 : max(last - shift - right, 0);
    const int whole_end = left < 0 ? queries : min(queries, first - shift + left + 1);
    work.tile_begin = begin / S::other_tile;
    work.tile_end = first > last ? 0 : (max(end, 0) + S::other_tile - 1) / S::other_tile;
    work.whole_begin = first + S::own_rows > keys ? 1 << 30 : (whole_begin + S::other_tile - 1) / S::other_tile;
    work.whole_end = max(whole_end, 0) / S::other_tile;
}

template <class S>
__device__ void produce_for_keys(Memory<S>& m, const Maps& maps, const AttentionCall& c, const TileOrder& order,
                                 const BackwardScratch& scratch, int padded_rows, int* counter) {
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
            find_key_work<S>(c, order, tile, work);
        }
        barrier_arrive(m.tile_full[slot.stage]);
        slot.advance();
        if (last) { return; }
        if (work.nothing()) { continue; }
        barrier_wait(m.own_empty[own.stage], own.phase ^ 1);
        Barrier& own_full = m.own_full[own.stage];
        barrier_arrive_expect(own_full, 2 * S::parts * S::own_rows * 128);
        for (int part = 0; part < S::parts; ++part) {
            const int row = work.key_begin + work.first;
            copy_box(m.own[own.stage][0][part], maps.score[0], own_full, 64 * part, row, work.kv_head, work.batch);
            copy_box(m.own[own.stage][1][part], maps.value[0], own_full, 64 * part, row, work.kv_head, work.batch);
        }
        own.advance();
        for (int member = 0; member < static_cast<int>(c.group); ++member) {
            const std::int64_t plane =
                static_cast<std::int64_t>(c.packed ? tile_number(order, tile).plane / c.kv_heads : work.batch) *
                    c.heads +
                work.head + member;
            for (int n = work.tile_begin; n < work.tile_end; ++n) {
                for (int which = 0; which < 2; ++which) {
                    barrier_wait(m.empty[which][ring.stage], ring.phase ^ 1);
                    Barrier& full = m.full[which][ring.stage];
                    barrier_arrive_expect(full, S::parts * S::other_tile * 128 + S::other_tile * 4);
                    for (int part = 0; part < S::parts; ++part) {
                        copy_box(m.other[which][ring.stage][part], which == 0 ? maps.score[1] : maps.value[1], full,
                                 64 * part, work.query_begin + n * S::other_tile, work.head + member, work.batch);
                    }
                    const float* rows = (which == 0 ? scratch.lse : scratch.delta) + plane * padded_rows + n * 64;
                    copy_line(which == 0 ? m.lse[ring.stage] : m.delta[ring.stage], rows, S::other_tile * 4, full);
                }
                ring.advance();
            }
        }
    }
}

template <class S>
struct KeysConsumer {
    Memory<S>& m;
    const AttentionCall& c;
    float scale;
    Ring<stages> ring{};
    int own_stage = 0;
    std::uint32_t plane = 0;  ///< of dropout's generator
    int row = 0;              ///< the thread's first

    /// Waits for the products of a step, if there was one, and gives its buffers back.
    __device__ void finish(int stage, bool begun) {
        wgmma_wait<0>();
        __syncwarp();  // every lane has read lse and delta
        if (begun) {
            release(m.empty[0][stage]);
            release(m.empty[1][stage]);
        }
    }

    /// Keys down, queries across. `seen` are the queries that the thread's two keys are seen by. With dropout a step
    /// leaves its last products to the next one, whose random words are found meanwhile.
    template <bool masked>
    __device__ void step(float (&dk)[S::size / 2], float (&dv)[S::size / 2], const Seen (&seen)[2], int first_query,
                         bool begun) {
        constexpr int tile = S::other_tile;
        const int warpgroup = static_cast<int>(threadIdx.x) / 128 - 1;
        const int column = static_cast<int>(threadIdx.x) % 4 * 2;
        float s[tile / 2], dp[tile / 2];
        std::uint32_t p[tile / 4], ds[tile / 4];
        Bits keeps;
        if constexpr (S::drops) { keeps = random_bits<tile / 2>(c, plane, Spot<true>{row, first_query + column}); }
        barrier_wait(m.full[0][ring.stage], ring.phase);
        if constexpr (S::drops) { finish(ring.stage ^ 1, begun); }
        wgmma_fence();
        multiply_rows<S, tile>(s, &m.own[own_stage][0][0][64 * warpgroup], own_tile, m.other[0][ring.stage], tile);
        wgmma_commit();
        barrier_wait(m.full[1][ring.stage], ring.phase);
        wgmma_fence();
        multiply_rows<S, tile>(dp, &m.own[own_stage][1][0][64 * warpgroup], own_tile, m.other[1][ring.stage], tile);
        wgmma_commit();
        wgmma_wait<1>();
#pragma unroll
        for (int n = 0; n < tile / 2; ++n) {
            const int query = n / 4 * 8 + column + n % 2;
            s[n] = exp2_fast(s[n] * scale - m.lse[ring.stage][query]);
            if constexpr (masked) {
                const int r = n % 4 / 2;
                if (first_query + query < seen[r].begin || first_query + query >= seen[r].end) { s[n] = 0; }
            }
        }
#pragma unroll
        for (int n = 0; n < tile / 4; ++n) {
            p[n] = packed<S::type>(s[2 * n], s[2 * n + 1]);
            if constexpr (S::drops) { p[n] &= (keeps(2 * n) ? 0xFFFFU : 0U) | (keeps(2 * n + 1) ? 0xFFFF0000U : 0U); }
        }
        barrier_wait(m.full[1][ring.stage], ring.phase);  // long there; it keeps the next line behind the exponentials
        wgmma_wait<0>();
        wgmma_fence();
        multiply_columns<S, tile>(dv, p, m.other[1][ring.stage]);
        wgmma_commit();
#pragma unroll
        for (int n = 0; n < tile / 2; ++n) {
            const int query = n / 4 * 8 + column + n % 2;
            if constexpr (S::drops) { dp[n] = keeps(n) ? dp[n] * c.drop_factor : 0.0F; }
            float d = s[n] * (dp[n] - m.delta[ring.stage][query]);
            if (masked) { d = s[n] == 0 ? 0.0F : d; }
            s[n] = d;
        }
#pragma unroll
        for (int n = 0; n < tile / 4; ++n) { ds[n] = packed<S::type>(s[2 * n], s[2 * n + 1]); }
        wgmma_fence();
        multiply_columns<S, tile>(dk, ds, m.other[0][ring.stage]);
        wgmma_commit();
        if constexpr (!S::drops) { finish(ring.stage, true); }
        ring.advance();
    }
};

/// Queries [begin, end) of an entry that see key j.
__device__ inline Seen seeing(const AttentionCall& c, const Work& work, int j) {
    Seen seen{0, work.queries};
    const int right = reach_of(c.right), left = reach_of(c.left), i = j - work.shift;
    if (j >= work.keys) { return {0, 0}; }
    if (right >= 0) { seen.begin = max(i - right, 0); }
    if (left >= 0) { seen.end = min(seen.end, max(i + left + 1, 0)); }
    return seen;
}

/// step(whether edges are inside, its first query, its head of the group, whether a step came before) for every tile of
/// queries.
template <class S, class Step>
__device__ void each_query_tile(const Work& work, int group, const Step& step) {
    bool begun = false;
    for (int member = 0; member < group; ++member) {
        int n = work.tile_begin;
        for (; n < min(work.tile_end, work.whole_begin); ++n) {
            step(std::true_type{}, n * S::other_tile, member, begun);
            begun = true;
        }
        for (; n < min(work.tile_end, work.whole_end); ++n) {
            step(std::false_type{}, n * S::other_tile, member, begun);
            begun = true;
        }
        for (; n < work.tile_end; ++n) {
            step(std::true_type{}, n * S::other_tile, member, begun);
            begun = true;
        }
    }
}

template <class S>
__global__ void __launch_bounds__(threads, 1)
    backward_keys(const __grid_constant__ Maps maps, const __grid_constant__ AttentionCall c,
                  const __grid_constant__ TileOrder order, const __grid_constant__ BackwardScratch scratch,
                  int padded_rows, int* counter) {
    extern __shared__ char memory[];
    auto& m = aligned_memory<Memory<S>>(memory);
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
    KeysConsumer<S> consumer{m, c, static_cast<float>(c.scale * 1.4426950408889634)};
    Ring<2> slot;
    Ring<S::own_stages> own;
    const int warpgroup = static_cast<int>(threadIdx.x) / 128 - 1;
    const int row_in_tile = (static_cast<int>(threadIdx.x) - 128) / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
    for (;;) {
        barrier_wait(m.tile_full[slot.stage], slot.phase);
        const Work& work = m.work[slot.stage];
        if (work.tile < 0) { break; }
        float dk[S::size / 2], dv[S::size / 2];
#pragma unroll
        for (int n = 0; n < S::size / 2; ++n) { dk[n] = dv[n] = 0; }
        if (!work.nothing()) {
            const Seen seen[2] = {seeing(c, work, work.first + row_in_tile),
                                  seeing(c, work, work.first + row_in_tile + 8)};
            barrier_wait(m.own_full[own.stage], own.phase);
            consumer.own_stage = own.stage;
            consumer.row = work.first + row_in_tile;
            each_query_tile<S>(work, static_cast<int>(c.group),
                               [&](auto masked, int first_query, int member, bool begun) {
                                   if constexpr (S::drops) { consumer.plane = plane_of(c, work, work.head + member); }
                                   consumer.template step<masked.value>(dk, dv, seen, first_query, begun);
                               });
            if constexpr (S::drops) { consumer.finish(consumer.ring.stage ^ 1, true); }
            release(m.own_empty[own.stage]);
            own.advance();
        }
        const bool k_finite = store_gradient<S>(c.dk, dk, static_cast<float>(c.scale), work.batch, work.kv_head,
                                                work.key_begin, work.first + 64 * warpgroup, work.rows, work.keys);
        const bool v_finite = store_gradient<S>(c.dv, dv, S::drops ? c.drop_factor : 1.0F, work.batch, work.kv_head,
                                                work.key_begin, work.first + 64 * warpgroup, work.rows, work.keys);
        const TileNumber number = tile_number(order, work.tile);
        put_flag(scratch.keys_flag + static_cast<std::int64_t>(number.plane) * (order.rows_tiles * 2) +
                     work.first / 64 + warpgroup,
                 scratch.spoilt, k_finite && v_finite, warpgroup);
        barrier_arrive(m.tile_empty[slot.stage]);
        slot.advance();
    }
}

}  // namespace
}  // namespace heed::cuda::sm90
