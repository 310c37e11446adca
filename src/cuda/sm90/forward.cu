/// Forward attention for Hopper: bands (causal, window, lengths, packed sequences), grouped heads, 16-bit types.
///
/// A block stays on its multiprocessor and takes tiles of 64 rows a warpgroup. One warp copies queries, keys and values
/// into shared memory; the other warpgroups multiply. The softmax of a tile of keys runs while the tensor cores
/// multiply the weights of the tile before with its values:
///
///     copies          K4 .... V5 .... K3 .... V4 .... K2 ....
///     tensor cores    [ Q K4 ][ P5 V5 ][ Q K3 ][ P4 V4 ]
///     the rest                 softmax 4         softmax 3
///
/// What ptxas must not do is to move the wait for P5 V5 before the exponentials; a wait for the copy of the values
/// stands between the two and pins them (docs/gpu.md).

#include "cuda/sm90/forward.h"

#include "cuda/attention_any.h"
#include "cuda/sm90/maps.h"
#include "cuda/sm90/ring.cuh"
#include "cuda/sm90/tiles.cuh"

namespace heed::cuda::sm90 {
namespace {

/// q_stages: with two, the queries of the next tile are there before this one is done.
template <int head_size, int key_tile_, int warpgroups_, int q_stages_, Half type_>
struct Shape {
    static constexpr int size = head_size, key_tile = key_tile_, warpgroups = warpgroups_, q_stages = q_stages_;
    static constexpr int stages = 2;
    static constexpr Half type = type_;
    static constexpr int row_tile = 64 * warpgroups;
    static constexpr int threads = 128 * (warpgroups + 1);
    static constexpr int parts = size / 64;  ///< of 128 bytes, in a row
    static constexpr int consumer_registers = warpgroups == 2 ? 240 : 160;
    static constexpr int producer_registers = warpgroups == 2 ? 24 : 32;
};

template <class S>
struct alignas(1024) Memory {
    std::uint16_t q[S::q_stages][S::parts][S::row_tile][64];
    std::uint16_t k[S::stages][S::parts][S::key_tile][64];
    std::uint16_t v[S::stages][S::parts][S::key_tile][64];
    Barrier q_full[S::q_stages], q_empty[S::q_stages];
    Barrier k_full[S::stages], k_empty[S::stages], v_full[S::stages], v_empty[S::stages];
    Barrier tile_full[2], tile_empty[2];
    Work work[2];
};

// ---- the warp that copies ------------------------------------------------------------------------------------------

template <class S>
__device__ void copy_rows(std::uint16_t (*to)[S::key_tile][64], const CUtensorMap& map, Barrier& full, const Work& work,
                          int n) {
    barrier_arrive_expect(full, S::parts * S::key_tile * 128);
    for (int part = 0; part < S::parts; ++part) {
        copy_box(to[part], map, full, 64 * part, work.key_begin + n * S::key_tile, work.kv_head, work.batch);
    }
}

template <class S>
__device__ void produce(Memory<S>& m, const CUtensorMap& q_map, const CUtensorMap& k_map, const CUtensorMap& v_map,
                        const AttentionCall& c, const TileOrder& order, int* counter) {
    Ring<S::stages> k, v;
    Ring<2> slot;
    Ring<S::q_stages> q;
    const int total = order.rows_tiles * order.planes;
    for (;;) {
        const int tile = atomicAdd(counter, 1);
        barrier_wait(m.tile_empty[slot.stage], slot.phase ^ 1);
        Work& work = m.work[slot.stage];
        if (tile < total) {
            find_work<S::row_tile, S::key_tile>(c, order, tile, work);
        } else {
            work.tile = -1;
        }
        barrier_arrive(m.tile_full[slot.stage]);
        slot.advance();
        if (tile >= total) { return; }
        if (work.nothing()) { continue; }
        const int tile_end = work.tile_end, tile_begin = work.tile_begin;
        for (int n = tile_end - 1; n >= tile_begin; --n) {
            barrier_wait(m.k_empty[k.stage], k.phase ^ 1);
            copy_rows<S>(m.k[k.stage], k_map, m.k_full[k.stage], work, n);
            k.advance();
            if (n == tile_end - 1) {
                barrier_wait(m.q_empty[q.stage], q.phase ^ 1);
                Barrier& full = m.q_full[q.stage];
                barrier_arrive_expect(full, S::parts * S::row_tile * 128);
                for (int part = 0; part < S::parts; ++part) {
                    copy_box(m.q[q.stage][part], q_map, full, 64 * part, work.query_begin + work.first, work.head,
                             work.batch);
                }
                q.advance();
            } else {
                barrier_wait(m.v_empty[v.stage], v.phase ^ 1);
                copy_rows<S>(m.v[v.stage], v_map, m.v_full[v.stage], work, n + 1);
                v.advance();
            }
        }
        barrier_wait(m.v_empty[v.stage], v.phase ^ 1);
        copy_rows<S>(m.v[v.stage], v_map, m.v_full[v.stage], work, tile_begin);
        v.advance();
    }
}

// ---- the warpgroups that multiply ----------------------------------------------------------------------------------

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

template <class S, bool masked>
__device__ void softmax(Scores<S>& s, Rows& rows, float scale, int first_key) {
    const int column = first_key + static_cast<int>(threadIdx.x) % 4 * 2;
    float next[2] = {rows.largest[0], rows.largest[1]};
#pragma unroll
    for (int n = 0; n < S::key_tile / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            float& x = s[4 * n + e];
            const int r = e / 2;
            if constexpr (masked) {
                const int key = column + 8 * n + e % 2;
                if (key < rows.seen[r].begin || key >= rows.seen[r].end) { x = -__builtin_huge_valf(); }
            }
            next[r] = fmaxf(next[r], x);
        }
    }
    float shift[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        next[r] = fmaxf(next[r], __shfl_xor_sync(~0U, next[r], 1));
        next[r] = fmaxf(next[r], __shfl_xor_sync(~0U, next[r], 2));
        // A row that has seen nothing yet: exp2(-infinity - 0) = 0.
        shift[r] = masked && next[r] == -__builtin_huge_valf() ? 0.0F : next[r] * scale;
        rows.rescale[r] = exp2_fast(rows.largest[r] * scale - shift[r]);
        rows.largest[r] = next[r];
        rows.sum[r] *= rows.rescale[r];
    }
#pragma unroll
    for (int n = 0; n < S::key_tile / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            float& x = s[4 * n + e];
            x = exp2_fast(x * scale - shift[e / 2]);
            rows.sum[e / 2] += x;
        }
    }
}

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

template <class S>
struct Consumer {
    Memory<S>& m;
    const AttentionCall& c;
    float scale;  ///< times log2(e)
    Ring<S::stages> k{}, v{};
    Ring<S::q_stages> q_ring{};

    /// One tile of keys while the products of the tile before run.
    template <bool masked>
    __device__ void step(const void* q, Scores<S>& s, Weights<S>& p, Output<S>& o, Rows& rows, bool add,
                         int first_key) {
        barrier_wait(m.k_full[k.stage], k.phase);
        wgmma_fence();
        multiply_keys<S>(s, fresh_descriptor(q), fresh_descriptor(m.k[k.stage]));
        wgmma_commit();
        multiply_values<S>(o, p, fresh_descriptor(m.v[v.stage], S::key_tile * 128), add);
        wgmma_commit();
        wgmma_wait<1>();
        const int k_read = k.stage, v_read = v.stage;
        if (threadIdx.x % 32 == 0) { barrier_arrive(m.k_empty[k_read]); }
        k.advance();
        v.advance();
        softmax<S, masked>(s, rows, scale, first_key);
        barrier_wait(m.v_full[v.stage], v.phase);  // needed for the next products, and here it pins the next line
        wgmma_wait<0>();
        if (threadIdx.x % 32 == 0) { barrier_arrive(m.v_empty[v_read]); }
        scale_output<S>(o, rows.rescale);
        pack<S>(s, p);
    }

    /// All tiles of keys of a tile of rows.
    __device__ void multiply(const Work& work, Output<S>& o, Rows& rows) {
        const int warpgroup = static_cast<int>(threadIdx.x) / 128 - 1;
        const void* q = &m.q[q_ring.stage][0][64 * warpgroup];
        Scores<S> s;
        Weights<S> p;
        int n = work.tile_end - 1;
        barrier_wait(m.q_full[q_ring.stage], q_ring.phase);
        barrier_wait(m.k_full[k.stage], k.phase);
        wgmma_fence();
        multiply_keys<S>(s, fresh_descriptor(q), fresh_descriptor(m.k[k.stage]));
        wgmma_commit();
        wgmma_wait<0>();
        if (threadIdx.x % 32 == 0) { barrier_arrive(m.k_empty[k.stage]); }
        k.advance();
        softmax<S, true>(s, rows, scale, n * S::key_tile);
        pack<S>(s, p);
        barrier_wait(m.v_full[v.stage], v.phase);
        bool add = false;
        for (--n; n >= max(work.tile_begin, work.whole_end); --n) {
            step<true>(q, s, p, o, rows, add, n * S::key_tile);
            add = true;
        }
        for (; n >= max(work.tile_begin, work.whole_begin); --n) {
            step<false>(q, s, p, o, rows, add, n * S::key_tile);
            add = true;
        }
        for (; n >= work.tile_begin; --n) {
            step<true>(q, s, p, o, rows, add, n * S::key_tile);
            add = true;
        }
        wgmma_fence();
        multiply_values<S>(o, p, fresh_descriptor(m.v[v.stage], S::key_tile * 128), add);
        wgmma_commit();
        wgmma_wait<0>();
        if (threadIdx.x % 32 == 0) { barrier_arrive(m.v_empty[v.stage]); }
        v.advance();
    }
};

__device__ inline float half_to_float(Half type, std::uint16_t bits) {
    return type == Half::bf16 ? bf16_to_float(bits) : f16_to_float(bits);
}

/// One row again, by a warp, from the tensors themselves: for rows whose result is not finite. Weights of 0 times NaN
/// or infinity in a key or value that the row does not see must not count, and tensor cores cannot leave anything out.
template <class S>
__device__ void repair_row(const AttentionCall& c, const Work& work, int i, float scale, float (&out)[S::size / 32],
                           float& lse) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const auto row_of = [&](const Tensor4& x, int head, std::int64_t row) {
        return static_cast<const std::uint16_t*>(x.data) + work.batch * x.stride[0] + head * x.stride[1] +
               row * x.stride[2];
    };
    const std::uint16_t* q = row_of(c.q, work.head, work.query_begin + i);
    const Seen seen = seen_by(c, work, i);
    float largest = -__builtin_huge_valf(), sum = 0;
#pragma unroll
    for (int n = 0; n < S::size / 32; ++n) { out[n] = 0; }
    for (int pass = 0; pass < 2; ++pass) {
        for (int key = seen.begin; key < seen.end; key += 32) {
            float x = -__builtin_huge_valf();
            if (key + lane < seen.end) {
                const std::uint16_t* k = row_of(c.k, work.kv_head, work.key_begin + key + lane);
                x = 0;
#pragma unroll 1
                for (int e = 0; e < S::size; ++e) { x += half_to_float(S::type, q[e]) * half_to_float(S::type, k[e]); }
            }
            if (pass == 0) {
                largest = fmaxf(largest, x);
                continue;
            }
            const bool nothing = largest == -__builtin_huge_valf();
            const float w =
                key + lane < seen.end && !(nothing && x == largest) ? exp2_fast((x - largest) * scale) : 0.0F;
            sum += w;
#pragma unroll 1
            for (int n = 0; n < min(32, seen.end - key); ++n) {
                const float weight = __shfl_sync(~0U, w, n);
                const std::uint16_t* v = row_of(c.v, work.kv_head, work.key_begin + key + n);
#pragma unroll
                for (int part = 0; part < S::size / 32; ++part) {
                    out[part] += weight * half_to_float(S::type, v[lane + 32 * part]);
                }
            }
        }
        for (int apart = 16; apart > 0; apart /= 2) {
            if (pass == 0) {
                largest = fmaxf(largest, __shfl_xor_sync(~0U, largest, apart));
            } else {
                sum += __shfl_xor_sync(~0U, sum, apart);
            }
        }
    }
    const bool empty = largest == -__builtin_huge_valf() && sum == 0;
    lse = empty ? -__builtin_huge_valf() : (largest * scale + log2f(sum)) * 0.6931471805599453F;
#pragma unroll
    for (int n = 0; n < S::size / 32; ++n) { out[n] = empty ? 0 : out[n] / sum; }
}

/// Rows to the output: through shared memory, so that a warp writes whole rows.
template <class S>
__device__ void store_rows(std::uint16_t (*place_of_queries)[S::row_tile][64], const AttentionCall& c, const Work& work,
                           Output<S>& o, Rows& rows, float scale) {
    const int warpgroup = static_cast<int>(threadIdx.x) / 128 - 1;
    const int warp = static_cast<int>(threadIdx.x) / 32 % 4, lane = static_cast<int>(threadIdx.x) % 32;
    const int first = work.first + 64 * warpgroup + 16 * warp;  // of the warp
    const bool wide = c.out.dtype == DType::f32;
    float lse[2], factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        float sum = rows.sum[r];
        sum += __shfl_xor_sync(~0U, sum, 1);
        sum += __shfl_xor_sync(~0U, sum, 2);
        const bool empty = work.nothing() || rows.largest[r] == -__builtin_huge_valf() && sum == 0;
        factor[r] = empty ? 0.0F : 1 / sum;
        lse[r] = empty ? -__builtin_huge_valf() : (rows.largest[r] * scale + log2f(sum)) * 0.6931471805599453F;
    }
    scale_output<S>(o, factor);
    bool finite = true;
#pragma unroll
    for (int n = 0; n < S::size / 2; ++n) { finite = finite && fabsf(o[n]) <= 3.4028234e38F; }

    // 16 rows of the warp, in the place of its queries: a part is 64 columns, 16-byte chunks swizzled by the row.
    const auto place = [&](int part, int row, int chunk) {
        return shared_address(&place_of_queries[part][64 * warpgroup + 16 * warp + row][0]) + (chunk ^ row % 8) * 16;
    };
    const std::int64_t out_rows = c.out.stride[2];
    const auto out_row = [&](int row) {
        return work.batch * c.out.stride[0] + work.head * c.out.stride[1] + (work.query_begin + first + row) * out_rows;
    };
    if (wide) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int row = lane / 4 + 8 * r;
            if (first + row >= work.rows) { continue; }
            const bool read = first + row < work.queries;
            float* out = static_cast<float*>(c.out.data) + out_row(row) + lane % 4 * 2;
#pragma unroll
            for (int n = 0; n < S::size / 8; ++n) {
                *reinterpret_cast<float2*>(out + 8 * n) =
                    read ? make_float2(o[4 * n + 2 * r], o[4 * n + 2 * r + 1]) : make_float2(0, 0);
            }
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
        constexpr int chunks = S::size / 8;  // of 16 bytes, in a row
#pragma unroll
        for (int n = 0; n < 16 * chunks / 32; ++n) {
            const int row = (32 * n + lane) / chunks, chunk = (32 * n + lane) % chunks;
            uint4 value;
            asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                         : "r"(place(chunk / 8, row, chunk % 8)));
            if (first + row >= work.rows) { continue; }
            if (first + row >= work.queries) { value = make_uint4(0, 0, 0, 0); }
            *reinterpret_cast<uint4*>(static_cast<std::uint16_t*>(c.out.data) + out_row(row) + 8 * chunk) = value;
        }
    }
    const auto put_lse = [&](int row, float value) {
        if (c.lse.data == nullptr || first + row >= work.rows) { return; }
        const std::int64_t at = work.batch * c.lse.stride[0] + work.head * c.lse.stride[1] +
                                (work.query_begin + first + row) * c.lse.stride[2];
        store_as<float>(c.lse.dtype, c.lse.data, at, first + row < work.queries ? value : -__builtin_huge_valf());
    };
    if (lane % 4 == 0) {
        put_lse(lane / 4, lse[0]);
        put_lse(lane / 4 + 8, lse[1]);
    }
    if (__all_sync(~0U, finite)) { return; }
#pragma unroll 1
    for (int row = 0; row < 16; ++row) {
        if (first + row >= work.queries || work.nothing()) { continue; }
        float out[S::size / 32], lse_of_row;
        repair_row<S>(c, work, first + row, scale, out, lse_of_row);
#pragma unroll
        for (int n = 0; n < S::size / 32; ++n) {
            store_as<float>(c.out.dtype, c.out.data, out_row(row) + lane + 32 * n, out[n]);
        }
        if (lane == 0) { put_lse(row, lse_of_row); }
    }
}

template <class S>
__global__ void __launch_bounds__(S::threads, 1)
    forward(const __grid_constant__ CUtensorMap q_map, const __grid_constant__ CUtensorMap k_map,
            const __grid_constant__ CUtensorMap v_map, const __grid_constant__ AttentionCall c,
            const __grid_constant__ TileOrder order, int* counter) {
    extern __shared__ char memory[];
    auto& m = *reinterpret_cast<Memory<S>*>((reinterpret_cast<std::uintptr_t>(memory) + 1023) / 1024 * 1024);
    if (threadIdx.x == 0) {
        constexpr int readers = 4 * S::warpgroups;  // a warp arrives once
        for (int n = 0; n < S::q_stages; ++n) {
            barrier_init(m.q_full[n], 1);
            barrier_init(m.q_empty[n], readers);
        }
        for (int n = 0; n < S::stages; ++n) {
            barrier_init(m.k_full[n], 1);
            barrier_init(m.k_empty[n], readers);
            barrier_init(m.v_full[n], 1);
            barrier_init(m.v_empty[n], readers);
        }
        for (int n = 0; n < 2; ++n) {
            barrier_init(m.tile_full[n], 1);
            barrier_init(m.tile_empty[n], 128 * S::warpgroups);  // every thread has read it
        }
        barrier_init_fence();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        fewer_registers<S::producer_registers>();
        if (threadIdx.x == 0) {
            prefetch(q_map);
            prefetch(k_map);
            prefetch(v_map);
            produce<S>(m, q_map, k_map, v_map, c, order, counter);
            finish_counter(counter);
        }
    } else {
        more_registers<S::consumer_registers>();
        Consumer<S> consumer{m, c, static_cast<float>(c.scale * 1.4426950408889634)};
        Ring<2> slot;
        for (;;) {
            barrier_wait(m.tile_full[slot.stage], slot.phase);
            const Work& work = m.work[slot.stage];
            if (work.tile < 0) { break; }
            Output<S> o;
            Rows rows;
            const int row =
                work.first + (static_cast<int>(threadIdx.x) - 128) / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                rows.largest[r] = -__builtin_huge_valf();
                rows.sum[r] = 0;
                rows.seen[r] = seen_by(c, work, row + 8 * r);
            }
#pragma unroll
            for (int n = 0; n < S::size / 2; ++n) { o[n] = 0; }
            if (!work.nothing()) { consumer.multiply(work, o, rows); }
            store_rows<S>(m.q[consumer.q_ring.stage], c, work, o, rows, consumer.scale);
            if (!work.nothing()) {
                async_fence();
                __syncwarp();
                if (threadIdx.x % 32 == 0) { barrier_arrive(m.q_empty[consumer.q_ring.stage]); }
                consumer.q_ring.advance();
            }
            barrier_arrive(m.tile_empty[slot.stage]);
            slot.advance();
        }
    }
}

template <class S>
bool launch(cudaStream_t stream, const AttentionCall& c, const ForwardPlan& plan) {
    CUtensorMap q, k, v;
    if (!rows_map(q, c.q, {c.head_size, c.queries, c.heads, c.batch}, S::row_tile) ||
        !rows_map(k, c.k, {c.head_size, c.keys, c.kv_heads, c.batch}, S::key_tile) ||
        !rows_map(v, c.v, {c.value_size, c.keys, c.kv_heads, c.batch}, S::key_tile)) {
        return false;
    }
    TileOrder order;
    order.rows_tiles = static_cast<int>((c.queries + S::row_tile - 1) / S::row_tile);
    order.planes = static_cast<int>(c.entries * c.heads);
    const bool uneven = c.right >= 0 || c.key_lengths.data != nullptr || c.packed;
    // Heads whose keys and values fit half of the second-level cache together.
    const std::int64_t bytes = 2 * c.keys * c.head_size * 2 / c.group;
    const std::int64_t together = (std::int64_t{32} << 20) / (bytes > 0 ? bytes : 1);
    order.width = uneven ? static_cast<int>(together < 1 ? 1 : together > order.planes ? order.planes : together) : 1;
    order.last_first = c.right >= 0;
    const int bytes_shared = static_cast<int>(sizeof(Memory<S>)) + 1024;
    if (cudaFuncSetAttribute(forward<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes_shared) != cudaSuccess) {
        return false;
    }
    const int blocks = order.total() < plan.multiprocessors ? order.total() : plan.multiprocessors;
    if (blocks > 0) { forward<S><<<blocks, S::threads, bytes_shared, stream>>>(q, k, v, c, order, plan.counter); }
    return true;
}

template <Half type>
bool launch_type(cudaStream_t stream, const AttentionCall& c, const ForwardPlan& plan) {
    if (c.head_size == 64) { return launch<Shape<64, 128, 3, 2, type>>(stream, c, plan); }
    return launch<Shape<128, 128, 2, 2, type>>(stream, c, plan);
}

}  // namespace

bool launch_forward(void* stream, const AttentionCall& call, const ForwardPlan& plan) {
    launch_clear_behind(stream, call, call.out, false, call.value_size, 0);
    launch_clear_behind(stream, call, call.lse, false, 1, minus_infinity);
    const auto queue = static_cast<cudaStream_t>(stream);
    return call.q.dtype == DType::bf16 ? launch_type<Half::bf16>(queue, call, plan)
                                       : launch_type<Half::f16>(queue, call, plan);
}

}  // namespace heed::cuda::sm90
