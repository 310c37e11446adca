#pragma once
#include "cuda/sm90/backward_general_queries.cuh"

namespace heed::cuda::sm90 {
namespace {

// ---- the gradient of the bias: own is a tile of it -----------------------------------------------------------------

/// A block owns 128 queries and 64 keys of the bias and walks over the entries and heads that read them, in their
/// order.
struct BiasTile {
    int entry, entries, head, heads;  ///< first and how many
    int query_tile, key_tile;
};
__device__ inline BiasTile bias_tile(const AttentionCall& c, int query_tiles, int key_tiles, int n) {
    BiasTile tile;
    tile.key_tile = n % key_tiles;
    n /= key_tiles;
    tile.query_tile = n % query_tiles;
    n /= query_tiles;
    const int heads = static_cast<int>(c.dbias_extent[1]);
    const bool all_heads = heads == 1, all_entries = c.dbias_extent[0] == 1;
    tile.head = all_heads ? 0 : n % heads;
    tile.heads = all_heads ? static_cast<int>(c.heads) : 1;
    tile.entry = all_entries ? 0 : n / heads;
    tile.entries = all_entries ? static_cast<int>(c.entries) : 1;
    return tile;
}

template <class S>
__device__ int bias_tiles(const GeneralCall& g, int& key_tiles) {
    key_tiles = static_cast<int>((g.call.keys + S::other_tile - 1) / S::other_tile);
    return static_cast<int>(g.call.dbias_extent[0] * g.call.dbias_extent[1]) * g.order.rows_tiles * key_tiles;
}

/// One thread: every entry and head is a piece of work of its own.
template <class S>
__device__ void produce_for_bias(GeneralMemory<S>& memory, const GeneralMaps& maps, const GeneralCall& g,
                                 int* counter) {
    Memory<S>& m = memory.common;
    Ring<stages> ring;
    Ring<2> slot;
    Ring<S::own_stages> own;
    int key_tiles = 0;
    const int total = bias_tiles<S>(g, key_tiles);
    for (;;) {
        const int n = atomicAdd(counter, 1);
        if (n >= total) { break; }
        const BiasTile tile = bias_tile(g.call, g.order.rows_tiles, key_tiles, n);
        const int steps = tile.entries * tile.heads;
        for (int at = 0; at < steps; ++at) {
            const int entry = tile.entry + at / tile.heads, head = tile.head + at % tile.heads;
            barrier_wait(m.tile_empty[slot.stage], slot.phase ^ 1);
            Work& work = m.work[slot.stage];
            find_query_work<S>(
                g, (entry * static_cast<int>(g.call.heads) + head) * g.order.rows_tiles + tile.query_tile, work);
            const bool edge = tile.key_tile >= work.whole_end || tile.key_tile < work.whole_begin;
            const bool outside = tile.key_tile >= work.tile_end || tile.key_tile < work.tile_begin;
            const unsigned flags = outside ? 0
                                           : flags_of(g.squares, work, head, work.first, tile.key_tile * S::other_tile,
                                                      own_tile, S::other_tile);
            const bool nothing = (flags & Squares::some_seen) == 0;
            work.tile_begin = tile.key_tile;
            work.tile_end = nothing ? tile.key_tile : tile.key_tile + 1;
            work.tile = n;
            memory.common.step[slot.stage] = {tile.key_tile,  head, entry, edge, (flags & Squares::some_hidden) != 0,
                                              at == steps - 1};
            barrier_arrive(m.tile_full[slot.stage]);
            slot.advance();
            if (nothing) { continue; }
            barrier_wait(m.own_empty[own.stage], own.phase ^ 1);
            Barrier& own_full = m.own_full[own.stage];
            barrier_arrive_expect(own_full, 2 * S::parts * own_tile * 128);
            for (int part = 0; part < S::parts; ++part) {
                copy_box(m.own[own.stage][0][part], maps.tensors.score[0], own_full, 64 * part, work.first, head,
                         entry);
                copy_box(m.own[own.stage][1][part], maps.tensors.value[0], own_full, 64 * part, work.first, head,
                         entry);
            }
            own.advance();
            for (int which = 0; which < 2; ++which) {
                barrier_wait(m.empty[which][ring.stage], ring.phase ^ 1);
                Barrier& full = m.full[which][ring.stage];
                barrier_arrive_expect(full, S::parts * S::other_tile * 128 + (which == 0 ? bias_bytes<S>(g) : 0));
                for (int part = 0; part < S::parts; ++part) {
                    copy_box(m.other[which][ring.stage][part],
                             which == 0 ? maps.tensors.score[1] : maps.tensors.value[1], full, 64 * part,
                             tile.key_tile * S::other_tile, work.kv_head, entry);
                }
                if (which == 0 && g.bias_is_copied) {
                    copy_bias<S>(memory, maps, g, full, ring.stage, 1, work.first, tile.key_tile * S::other_tile, head,
                                 entry);
                }
            }
            ring.advance();
        }
    }
    barrier_wait(m.tile_empty[slot.stage], slot.phase ^ 1);
    m.work[slot.stage].tile = -1;
    barrier_arrive(m.tile_full[slot.stage]);
}

template <class S>
__device__ void store_bias_tile(const GeneralCall& g, int tile_number_of_bias, const float (&sum)[S::other_tile / 2]) {
    const AttentionCall& c = g.call;
    int key_tiles = 0;
    bias_tiles<S>(g, key_tiles);
    const BiasTile tile = bias_tile(c, g.order.rows_tiles, key_tiles, tile_number_of_bias);
    const Spot<false> spot{tile.query_tile * own_tile + (static_cast<int>(threadIdx.x) - 128) / 32 * 16 +
                               static_cast<int>(threadIdx.x) % 32 / 4,
                           tile.key_tile * S::other_tile + static_cast<int>(threadIdx.x) % 4 * 2};
    const Tensor4& x = c.dbias;
    const std::int64_t begin = tile.entry * x.stride[0] + tile.head * x.stride[1];
    const bool pairs = x.dtype == DType::f32 && x.stride[3] == 1 && x.stride[2] % 2 == 0 && c.keys % 2 == 0 &&
                       begin % 2 == 0 && reinterpret_cast<std::uintptr_t>(x.data) % 8 == 0;
#pragma unroll
    for (int n = 0; n < S::other_tile / 2; n += 2) {
        const int i = spot.query(n), j = spot.key(n);
        if (i >= c.queries || j >= c.keys) { continue; }
        const std::int64_t at = begin + i * x.stride[2] + j * x.stride[3];
        if (pairs) {
            *reinterpret_cast<float2*>(static_cast<float*>(x.data) + at) = make_float2(sum[n], sum[n + 1]);
            continue;
        }
        store_as<float>(x.dtype, x.data, at, sum[n]);
        if (j + 1 < c.keys) { store_as<float>(x.dtype, x.data, at + x.stride[3], sum[n + 1]); }
    }
}

template <class S>
__global__ void __launch_bounds__(threads, 1)
    general_bias(const __grid_constant__ GeneralMaps maps, const __grid_constant__ GeneralCall g, int* counter) {
    constexpr int tile = S::other_tile;
    extern __shared__ char raw[];
    auto& memory = aligned_memory<GeneralMemory<S>>(raw);
    Memory<S>& m = memory.common;
    const AttentionCall& c = g.call;
    init_barriers(m);
    if (threadIdx.x < 128) {
        fewer_registers<40>();
        if (threadIdx.x == 0) {
            produce_for_bias<S>(memory, maps, g, counter);
            finish_counter(counter);
        }
        return;
    }
    more_registers<232>();
    Ring<stages> ring;
    Ring<2> slot;
    Ring<S::own_stages> own;
    const int warpgroup = static_cast<int>(threadIdx.x) / 128 - 1, column = static_cast<int>(threadIdx.x) % 4 * 2;
    const int row_in_tile = (static_cast<int>(threadIdx.x) - 128) / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
    float sum[tile / 2];
#pragma unroll
    for (int n = 0; n < tile / 2; ++n) { sum[n] = 0; }
    for (;;) {
        barrier_wait(m.tile_full[slot.stage], slot.phase);
        const Work& work = m.work[slot.stage];
        if (work.tile < 0) { break; }
        const Step step = memory.common.step[slot.stage];
        if (!work.nothing()) {
            float s[tile / 2], dp[tile / 2];
            QueryRows rows;
            const std::int64_t first_row =
                (static_cast<std::int64_t>(step.entry) * c.heads + step.head) * g.padded_rows + work.first;
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                rows.lse[r] = g.scratch.lse[first_row + row_in_tile + 8 * r];
                rows.delta[r] = g.scratch.delta[first_row + row_in_tile + 8 * r];
                rows.dslope[r] = 0;
            }
            barrier_wait(m.own_full[own.stage], own.phase);
            barrier_wait(m.full[0][ring.stage], ring.phase);
            barrier_wait(m.full[1][ring.stage], ring.phase);
            wgmma_fence();
            multiply_rows<S, tile>(s, &m.own[own.stage][0][0][64 * warpgroup], own_tile, m.other[0][ring.stage], tile);
            multiply_rows<S, tile>(dp, &m.own[own.stage][1][0][64 * warpgroup], own_tile, m.other[1][ring.stage], tile);
            wgmma_commit();
            const Spot<false> spot{work.first + row_in_tile, step.tile * tile + column};
            const Bits kept = kept_beside<tile / 2>(c, work, step, spot);
            wgmma_wait<0>();
            release(m.own_empty[own.stage]);
            release(m.empty[1][ring.stage]);
            differentiate<tile / 2, false>(c, work, step, spot, rows, kept,
                                           g.bias_is_copied ? memory.bias[ring.stage] : nullptr, s, dp);
            __syncwarp();  // every lane has read the bias
            release(m.empty[0][ring.stage]);
            own.advance();
            ring.advance();
#pragma unroll
            for (int n = 0; n < tile / 2; ++n) { sum[n] += dp[n]; }
        }
        if (step.last) {
            store_bias_tile<S>(g, work.tile, sum);
#pragma unroll
            for (int n = 0; n < tile / 2; ++n) { sum[n] = 0; }
        }
        barrier_arrive(m.tile_empty[slot.stage]);
        slot.advance();
    }
}

}  // namespace
}  // namespace heed::cuda::sm90
