#pragma once
/// What the two sweeps of the backward pass share; see backward.cu.

#include "cuda/sm90/backward.h"
#include "cuda/sm90/general.cuh"
#include "cuda/sm90/ring.cuh"
#include "cuda/sm90/tiles.cuh"
#include "cuda/sm90/wgmma_wide.cuh"

namespace heed::cuda::sm90 {
namespace {

constexpr int warpgroups = 2;
constexpr int threads = 128 * (warpgroups + 1);
constexpr int own_tile = 64 * warpgroups;  ///< rows that a block owns
constexpr int stages = 2;
constexpr int consumer_registers = 240, producer_registers = 24;

template <int size_, int other_tile_, Half type_, int own_rows_ = own_tile, bool drops_ = false>
struct Shape {
    static constexpr int size = size_, parts = size / 64, other_tile = other_tile_, own_rows = own_rows_;
    /// With two, the rows of the next tile are there before this one is done; at 256 columns there is no room for them.
    static constexpr int own_stages = size == 256 ? 1 : 2;
    static constexpr Half type = type_;
    static constexpr bool drops = drops_;  ///< with dropout
};

/// Of the sweeps with every option: a tile of the other side, from the warp that copies to the others.
struct Step {
    int tile;
    int head;
    int entry;   ///< of the sweep that gathers the bias's gradient
    bool edge;   ///< rows, or a band, end inside
    bool mixed;  ///< single pairs are hidden inside
    bool last;
};

template <class S>
struct alignas(1024) Memory {
    // Of the own rows, and of the others: what the scores are made of (q or k), and what meets it in dP (dout or v).
    std::uint16_t own[S::own_stages][2][S::parts][S::own_rows][64];
    std::uint16_t other[2][stages][S::parts][S::other_tile][64];
    float lse[stages][64], delta[stages][64];  ///< of the sweep over keys
    Barrier own_full[S::own_stages], own_empty[S::own_stages];
    Barrier full[2][stages], empty[2][stages];
    Barrier tile_full[2], tile_empty[2];
    Work work[2];
    Step step[stages];
};

template <class S>
__device__ void init_barriers(Memory<S>& m) {
    if (threadIdx.x == 0) {
        constexpr int readers = 4 * warpgroups;
        for (int n = 0; n < S::own_stages; ++n) {
            barrier_init(m.own_full[n], 1);
            barrier_init(m.own_empty[n], readers);
        }
        for (int n = 0; n < stages; ++n) {
            for (int which = 0; which < 2; ++which) {
                barrier_init(m.full[which][n], 1);
                barrier_init(m.empty[which][n], readers);
            }
        }
        for (int n = 0; n < 2; ++n) {
            barrier_init(m.tile_full[n], 1);
            barrier_init(m.tile_empty[n], 128 * warpgroups);  // every thread has read it
        }
        barrier_init_fence();
    }
    __syncthreads();
}

/// Maps of q, k, v and dout with the boxes that a sweep asks for.
struct Maps {
    CUtensorMap score[2];  ///< own, other: of the scores
    CUtensorMap value[2];  ///< of dP
};

/// [64, columns of b] = a b', a and b in shared memory, the sums over the head.
template <class S, int columns>
__device__ void multiply_rows(float (&d)[columns / 2], const void* a, int a_rows, const void* b, int b_rows) {
    const std::uint64_t first = fresh_descriptor(a), second = fresh_descriptor(b);
#pragma unroll
    for (int step = 0; step < S::size / 16; ++step) {
        const int part = step / 4, inside = step % 4 * 32;
        Wgmma<columns, S::type>::ss(d, advanced(first, part * a_rows * 128 + inside),
                                    advanced(second, part * b_rows * 128 + inside), step > 0);
    }
}
/// d += a b, a in registers, the sums over b's rows.
template <class S, int depth>
__device__ void multiply_columns(float (&d)[S::size / 2], const std::uint32_t (&a)[depth / 4], const void* b) {
    const std::uint64_t rows = fresh_descriptor(b, depth * 128);
#pragma unroll
    for (int step = 0; step < depth / 16; ++step) {
        Wgmma<S::size, S::type>::template rs<true>(d, a + 4 * step, advanced(rows, step * 16 * 128), true);
    }
}

__device__ inline void release(Barrier& barrier) {
    if (threadIdx.x % 32 == 0) { barrier_arrive(barrier); }
}

/// A warpgroup's 64 rows of a gradient; says whether all numbers are finite.
template <class S>
__device__ bool store_gradient(const Tensor4& x, const float (&d)[S::size / 2], float factor, int batch, int head,
                               int row_begin, int first, int rows, int read) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int row_of_warp = first + static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane / 4;
    bool finite = true;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int row = row_of_warp + 8 * r;
        const bool zero = row >= read;
        const std::int64_t at =
            batch * x.stride[0] + head * x.stride[1] + (row_begin + row) * x.stride[2] + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < S::size / 8; ++n) {
            const float low = zero ? 0.0F : d[4 * n + 2 * r] * factor,
                        high = zero ? 0.0F : d[4 * n + 2 * r + 1] * factor;
            finite = finite && fabsf(low) <= 3.4028234e38F && fabsf(high) <= 3.4028234e38F;
            if (row >= rows) { continue; }
            if (x.dtype == DType::f32) {
                *reinterpret_cast<float2*>(static_cast<float*>(x.data) + at + 8 * n) = make_float2(low, high);
            } else {
                *reinterpret_cast<std::uint32_t*>(static_cast<std::uint16_t*>(x.data) + at + 8 * n) =
                    packed<S::type>(low, high);
            }
        }
    }
    return finite;
}

/// One flag of the `met` threads that meet at a barrier: is there anything that is not finite?
template <int met = 128>
__device__ inline void put_flag(unsigned char* flag, int* spoilt, bool finite, int warpgroup) {
    int any = 0;
    asm volatile("{ .reg .pred p, q; setp.ne.b32 p, %1, 0; barrier.red.or.pred q, %2, %3, p; selp.b32 %0, 1, 0, q; }\n"
                 : "=r"(any)
                 : "r"(static_cast<int>(!finite)), "r"(1 + warpgroup), "n"(met)
                 : "memory");
    if (threadIdx.x % met == 0) {
        *flag = static_cast<unsigned char>(any);
        if (any != 0) { *spoilt = 1; }
    }
}

/// log2(e) * lse and delta of every row, in rows of padded length; what is no row has lse = +infinity, so that its
/// weights are 0. A row takes as many lanes as it has pieces of 16 bytes.
template <int size>
__global__ void prepare_rows(const __grid_constant__ AttentionCall c, const __grid_constant__ BackwardScratch scratch,
                             std::int64_t padded_rows) {
    constexpr int lanes = size / 8;
    const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    const std::int64_t n = thread / lanes;
    const int column = static_cast<int>(thread % lanes) * 8;
    if (thread == 0) { *scratch.spoilt = 0; }
    const std::int64_t plane = n / padded_rows, i = n - plane * padded_rows;
    if (plane >= c.entries * c.heads) { return; }  // whole rows
    const std::int64_t b = plane / c.heads, h = plane - b * c.heads;
    const Entry s = entry_of(c, b);
    const std::int64_t t = s.query_begin + i;
    float lse = __builtin_huge_valf(), delta = 0;
    bool row = false;
    if (i < s.queries) {
        const std::int64_t at = s.batch * c.lse.stride[0] + h * c.lse.stride[1] + t * c.lse.stride[2];
        const float value = load_as<float>(c.lse.dtype, c.lse.data, at);
        row = value != -__builtin_huge_valf();
        if (row) { lse = value * 1.4426950408889634F; }
    }
    if (row) {
        const std::int64_t dout_at = s.batch * c.dout.stride[0] + h * c.dout.stride[1] + t * c.dout.stride[2] + column;
        const std::int64_t out_at = s.batch * c.out.stride[0] + h * c.out.stride[1] + t * c.out.stride[2] + column;
        alignas(16) std::uint16_t dout[8], out[8];
        *reinterpret_cast<uint4*>(dout) =
            *reinterpret_cast<const uint4*>(static_cast<const std::uint16_t*>(c.dout.data) + dout_at);
        if (c.out.dtype == c.dout.dtype) {
            *reinterpret_cast<uint4*>(out) =
                *reinterpret_cast<const uint4*>(static_cast<const std::uint16_t*>(c.out.data) + out_at);
        }
#pragma unroll
        for (int e = 0; e < 8; ++e) {
            const auto wide = [&](std::uint16_t bits) {
                return c.dout.dtype == DType::bf16 ? bf16_to_float(bits) : f16_to_float(bits);
            };
            const float result =
                c.out.dtype == c.dout.dtype ? wide(out[e]) : static_cast<const float*>(c.out.data)[out_at + e];
            // A row that sees nothing has out = 0 and passes no gradient, whatever dout holds there.
            if (result != 0) { delta += wide(dout[e]) * result; }
        }
    }
    for (int apart = lanes / 2; apart > 0; apart /= 2) { delta += __shfl_xor_sync(~0U, delta, apart); }
    if (column == 0) {
        if (row && c.dlse.data != nullptr) {
            const std::int64_t at = s.batch * c.dlse.stride[0] + h * c.dlse.stride[1] + t * c.dlse.stride[2];
            delta -= load_as<float>(c.dlse.dtype, c.dlse.data, at);
        }
        scratch.lse[n] = lse;
        scratch.delta[n] = delta;
        if (c.row_dsink != nullptr) {
            const float sink = row ? load_as<float>(c.sinks.dtype, c.sinks.data, h * c.sinks.stride[0]) : 0.0F;
            static_cast<float*>(c.row_dsink)[n] = row ? -delta * exp2f(sink * 1.4426950408889634F - lse) : 0.0F;
        }
    }
}

inline int heads_together(const AttentionCall& c, std::int64_t rows, std::int64_t planes, bool uneven) {
    const std::int64_t bytes = 4 * rows * c.head_size;
    const std::int64_t together = (std::int64_t{32} << 20) / (bytes > 0 ? bytes : 1);
    return uneven ? static_cast<int>(together < 1 ? 1 : together > planes ? planes : together) : 1;
}

}  // namespace
}  // namespace heed::cuda::sm90
