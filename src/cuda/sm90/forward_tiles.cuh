#pragma once
/// What the forward kernels share: shapes and shared memory, products, and how rows are written. See forward.cu.

#include "cuda/sm90/ring.cuh"
#include "cuda/sm90/tiles.cuh"
#include "cuda/sm90/wgmma_wide.cuh"

namespace heed::cuda::sm90 {
namespace {

/// q_stages: with two, the queries of the next tile are there before this one is done. drops: with dropout.
template <int head_size, int key_tile_, int warpgroups_, int q_stages_, Half type_, bool drops_ = false>
struct Shape {
    static constexpr int size = head_size, key_tile = key_tile_, warpgroups = warpgroups_, q_stages = q_stages_;
    static constexpr int k_stages = 2, v_stages = 2;
    static constexpr int slots = 3;        ///< tiles of rows that are worked on, or known
    static constexpr bool joined = false;  ///< see Consumer::run
    static constexpr Half type = type_;
    static constexpr bool drops = drops_;
    static constexpr int row_tile = 64 * warpgroups;
    static constexpr int threads = 128 * (warpgroups + 1);
    static constexpr int parts = size / 64;  ///< of 128 bytes, in a row
    static constexpr int consumer_registers = warpgroups == 2 ? 240 : 160;
    static constexpr int producer_registers = warpgroups == 2 ? 24 : 32;
};

/// The values of a tile are still needed when those of the next one should be on their way: one buffer more.
template <int head_size, int key_tile, int warpgroups, Half type>
struct JoinedShape : Shape<head_size, key_tile, warpgroups, 2, type> {
    static constexpr int v_stages = 3;
    static constexpr bool joined = true;
};

template <class S>
struct alignas(1024) Memory {
    std::uint16_t q[S::q_stages][S::parts][S::row_tile][64];
    std::uint16_t k[S::k_stages][S::parts][S::key_tile][64];
    std::uint16_t v[S::v_stages][S::parts][S::key_tile][64];
    Barrier q_full[S::q_stages], q_empty[S::q_stages];
    Barrier k_full[S::k_stages], k_empty[S::k_stages], v_full[S::v_stages], v_empty[S::v_stages];
    Barrier tile_full[S::slots], tile_empty[S::slots];
    Work work[S::slots];
};

template <class S>
__device__ void init_barriers(Memory<S>& m) {
    if (threadIdx.x == 0) {
        constexpr int readers = 4 * S::warpgroups;  // a warp arrives once
        for (int n = 0; n < S::q_stages; ++n) {
            barrier_init(m.q_full[n], 1);
            barrier_init(m.q_empty[n], readers);
        }
        for (int n = 0; n < S::k_stages; ++n) {
            barrier_init(m.k_full[n], 1);
            barrier_init(m.k_empty[n], readers);
        }
        for (int n = 0; n < S::v_stages; ++n) {
            barrier_init(m.v_full[n], 1);
            barrier_init(m.v_empty[n], readers);
        }
        for (int n = 0; n < S::slots; ++n) {
            barrier_init(m.tile_full[n], 1);
            barrier_init(m.tile_empty[n], 128 * S::warpgroups);  // every thread has read it
        }
        barrier_init_fence();
    }
    __syncthreads();
}

template <class S>
__device__ void copy_rows(std::uint16_t (*to)[S::key_tile][64], const CUtensorMap& map, Barrier& full, const Work& work,
                          int n) {
    barrier_arrive_expect(full, S::parts * S::key_tile * 128);
    for (int part = 0; part < S::parts; ++part) {
        copy_box(to[part], map, full, 64 * part, work.key_begin + n * S::key_tile, work.kv_head, work.batch);
    }
}

template <class S>
using Scores = float[S::key_tile / 2];
template <class S>
using Output = float[S::size / 2];
template <class S>
using Weights = std::uint32_t[S::key_tile / 4];

template <class S>
__device__ void multiply_keys(Scores<S>& s, std::uint64_t q, std::uint64_t k) {
#pragma unroll
    for (int step = 0; step < S::size / 16; ++step) {
        const int part = step / 4, inside = step % 4 * 32;
        Wgmma<S::key_tile, S::type>::ss(s, advanced(q, part * S::row_tile * 128 + inside),
                                        advanced(k, part * S::key_tile * 128 + inside), step > 0);
    }
}
template <class S>
__device__ void multiply_values(Output<S>& o, const Weights<S>& p, std::uint64_t v, bool add) {
#pragma unroll
    for (int step = 0; step < S::key_tile / 16; ++step) {
        Wgmma<S::size, S::type>::template rs<true>(o, p + 4 * step, advanced(v, step * 16 * 128), add || step > 0);
    }
}

/// Of a thread's two rows: 16 * warp + lane / 4, and 8 further on.
struct Rows {
    float largest[2], sum[2], rescale[2];
    Seen seen[2];
};

template <class S>
__device__ void pack(const Scores<S>& s, Weights<S>& p) {
#pragma unroll
    for (int n = 0; n < S::key_tile / 4; ++n) { p[n] = packed<S::type>(s[2 * n], s[2 * n + 1]); }
}

template <class S>
__device__ void scale_output(Output<S>& o, const float (&factor)[2]) {
#pragma unroll
    for (int n = 0; n < S::size / 2; ++n) { o[n] *= factor[n % 4 / 2]; }
}

__device__ inline float half_to_float(Half type, std::uint16_t bits) {
    return type == Half::bf16 ? bf16_to_float(bits) : f16_to_float(bits);
}

/// What the sums of a thread's two rows come to: what their output is multiplied with, and the log-sum-exp.
struct Ends {
    float factor[2], lse[2];
};

/// Rows to the output: through shared memory, so that a warp writes whole rows. repair(row of the entry, out, lse)
/// computes one again where numbers are not finite.
template <class S, class Repair>
__device__ void store_rows(std::uint16_t (*place_of_queries)[S::row_tile][64], const AttentionCall& c, const Work& work,
                           Output<S>& o, const Ends& ends, const Repair& repair) {
    const int warpgroup = static_cast<int>(threadIdx.x) / 128 - 1;
    const int warp = static_cast<int>(threadIdx.x) / 32 % 4, lane = static_cast<int>(threadIdx.x) % 32;
    const int first = work.first + 64 * warpgroup + 16 * warp;  // of the warp
    const bool wide = c.out.dtype == DType::f32;
    scale_output<S>(o, ends.factor);
    bool finite = true;
#pragma unroll
    for (int n = 0; n < S::size / 2; ++n) { finite = finite && fabsf(o[n]) <= 3.4028234e38F; }

    // 16 rows of the warp, in the place of its queries: a part is 64 columns, 16-byte chunks swizzled by the row.
    const auto place = [&](int part, int row, int chunk) {
        return shared_address(&place_of_queries[part][64 * warpgroup + 16 * warp + row][0]) + (chunk ^ row % 8) * 16;
    };
    // What the work says, read once: behind every store the compiler would read it again.
    const std::int64_t out_rows = c.out.stride[2];
    const int rows_left = work.rows - first, queries_left = work.queries - first;
    const std::int64_t first_row = work.query_begin + first;
    const std::int64_t out_first = work.batch * c.out.stride[0] + work.head * c.out.stride[1] + first_row * out_rows;
    const std::int64_t lse_first =
        work.batch * c.lse.stride[0] + work.head * c.lse.stride[1] + first_row * c.lse.stride[2];
    if (wide) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int row = lane / 4 + 8 * r;
            if (row >= rows_left) { continue; }
            const bool read = row < queries_left;
            float* out = static_cast<float*>(c.out.data) + out_first + row * out_rows + lane % 4 * 2;
#pragma unroll
            for (int n = 0; n < S::size / 8; ++n) {
                *reinterpret_cast<float2*>(out + 8 * n) =
                    read ? make_float2(o[4 * n + 2 * r], o[4 * n + 2 * r + 1]) : make_float2(0, 0);
            }
        }
    } else if (work.nothing()) {
        // The tile has no queries in shared memory: their place may be the next one's already.
        for (int n = lane; n < 16 * S::size / 8; n += 32) {
            const int row = n / (S::size / 8), column = n % (S::size / 8) * 8;
            if (row >= rows_left) { continue; }
            auto* out = static_cast<std::uint16_t*>(c.out.data) + out_first + row * out_rows + column;
            *reinterpret_cast<uint4*>(out) = make_uint4(0, 0, 0, 0);
        }
    } else {
        // All four warps are done with the warpgroup's queries.
        named_barrier(1 + warpgroup, 128);
#pragma unroll
        for (int n = 0; n < S::size / 16; ++n) {
            const int row = lane % 16, chunk = 2 * n + lane / 16;
            store_matrices(place(chunk / 8, row, chunk % 8), packed<S::type>(o[8 * n], o[8 * n + 1]),
                           packed<S::type>(o[8 * n + 2], o[8 * n + 3]), packed<S::type>(o[8 * n + 4], o[8 * n + 5]),
                           packed<S::type>(o[8 * n + 6], o[8 * n + 7]));
        }
        __syncwarp();
        constexpr int chunks = S::size / 8;   // of 16 bytes, in a row
        constexpr int at_once = 32 / chunks;  // rows that a warp writes together
        constexpr int count = 16 / at_once;
        const int row = lane / chunks, chunk = lane % chunks;
        uint4 values[count];
#pragma unroll
        for (int n = 0; n < count; ++n) {
            asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(values[n].x), "=r"(values[n].y), "=r"(values[n].z), "=r"(values[n].w)
                         : "r"(place(chunk / 8, row + n * at_once, chunk % 8)));
        }
        auto* out = static_cast<std::uint16_t*>(c.out.data) + out_first + row * out_rows + 8 * chunk;
#pragma unroll
        for (int n = 0; n < count; ++n) {
            if (row + n * at_once >= queries_left) { values[n] = make_uint4(0, 0, 0, 0); }
            if (row + n * at_once < rows_left) { *reinterpret_cast<uint4*>(out) = values[n]; }
            out += at_once * out_rows;
        }
    }
    const auto put_lse = [&](int row, float value) {
        if (c.lse.data == nullptr || row >= rows_left) { return; }
        store_as<float>(c.lse.dtype, c.lse.data, lse_first + row * c.lse.stride[2],
                        row < queries_left ? value : -__builtin_huge_valf());
    };
    if (lane % 4 == 0) {
        put_lse(lane / 4, ends.lse[0]);
        put_lse(lane / 4 + 8, ends.lse[1]);
    }
    if (__all_sync(~0U, finite)) { return; }
#pragma unroll 1
    for (int row = 0; row < 16; ++row) {
        if (row >= queries_left) { continue; }
        float out[S::size / 32], lse_of_row;
        repair(first + row, out, lse_of_row);
#pragma unroll
        for (int n = 0; n < S::size / 32; ++n) {
            store_as<float>(c.out.dtype, c.out.data, out_first + row * out_rows + lane + 32 * n, out[n]);
        }
        if (lane == 0) { put_lse(row, lse_of_row); }
    }
}

/// In which order blocks take tiles of rows.
inline TileOrder order_of_rows(const AttentionCall& c, int row_tile, bool any_length) {
    TileOrder order;
    order.rows_tiles = static_cast<int>((c.queries + row_tile - 1) / row_tile);
    order.planes = static_cast<int>(c.entries * c.heads);
    const bool uneven = any_length || c.right >= 0 || c.key_lengths.data != nullptr || c.packed;
    // Heads whose keys and values fit half of the second-level cache together.
    const std::int64_t bytes = 2 * c.keys * c.head_size * 2 / c.group;
    const std::int64_t together = (std::int64_t{32} << 20) / (bytes > 0 ? bytes : 1);
    order.width = uneven ? static_cast<int>(together < 1 ? 1 : together > order.planes ? order.planes : together) : 1;
    order.last_first = c.right >= 0;
    return order;
}

}  // namespace
}  // namespace heed::cuda::sm90
