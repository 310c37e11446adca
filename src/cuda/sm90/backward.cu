/// Backward attention for Hopper, what forward.cu takes. Two sweeps, each of which owns what it writes: dk and dv of a
/// tile of keys gather over the queries, dq of a tile of queries over the keys. Scores are computed twice (7 products
/// where a single sweep has 5), and in return nothing is added up in memory: no order to keep, no float32 copy of dq,
/// the same bits in every run.
///
///     P  = exp(scale q k - lse)        dP = dout v        dS = P (dP - delta)
///     dv = P' dout        dk = scale dS' q        dq = scale dS k
///
/// The sweep over keys computes transposed tiles (keys down, queries across), so that P' and dS' are in registers as
/// the tensor cores want them for the second product; nothing but the inputs ever goes through shared memory.

#include "cuda/sm90/backward.h"

#include "cuda/attention_any.h"
#include "cuda/sm90/backward_keys.cuh"
#include "cuda/sm90/backward_queries.cuh"
#include "cuda/sm90/maps.h"

namespace heed::cuda::sm90 {
namespace {

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
    }
}

template <class S, class Kernel>
bool launch_sweep(cudaStream_t stream, Kernel kernel, const Maps& maps, const AttentionCall& c, const TileOrder& order,
                  const BackwardScratch& scratch, const ForwardPlan& plan) {
    const int bytes = static_cast<int>(sizeof(Memory<S>)) + 1024;
    if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) != cudaSuccess) {
        return false;
    }
    const int blocks = order.total() < plan.multiprocessors ? order.total() : plan.multiprocessors;
    const int padded = static_cast<int>(BackwardScratch::padded(c.queries));
    if (blocks > 0) { kernel<<<blocks, threads, bytes, stream>>>(maps, c, order, scratch, padded, plan.counter); }
    return true;
}

int heads_together(const AttentionCall& c, std::int64_t rows, std::int64_t planes, bool uneven) {
    const std::int64_t bytes = 4 * rows * c.head_size;
    const std::int64_t together = (std::int64_t{32} << 20) / (bytes > 0 ? bytes : 1);
    return uneven ? static_cast<int>(together < 1 ? 1 : together > planes ? planes : together) : 1;
}

template <int size, Half type>
bool launch(cudaStream_t stream, const AttentionCall& c, const BackwardScratch& scratch, const ForwardPlan& plan) {
    using Queries = Shape<size, size == 128 ? 96 : 128, type>;
    using Keys = Shape<size, 64, type>;
    const Extents queries{c.head_size, c.queries, c.heads, c.batch}, keys{c.head_size, c.keys, c.kv_heads, c.batch};
    Maps by_query, by_key;
    if (!rows_map(by_query.score[0], c.q, queries, own_tile) ||
        !rows_map(by_query.value[0], c.dout, queries, own_tile) ||
        !rows_map(by_query.score[1], c.k, keys, Queries::other_tile) ||
        !rows_map(by_query.value[1], c.v, keys, Queries::other_tile) ||
        !rows_map(by_key.score[0], c.k, keys, own_tile) || !rows_map(by_key.value[0], c.v, keys, own_tile) ||
        !rows_map(by_key.score[1], c.q, queries, Keys::other_tile) ||
        !rows_map(by_key.value[1], c.dout, queries, Keys::other_tile)) {
        return false;
    }
    const std::int64_t padded = BackwardScratch::padded(c.queries);
    const std::int64_t rows = c.entries * c.heads * padded;
    if (rows > 0) {
        const std::int64_t threads_needed = rows * (size / 8);
        prepare_rows<size><<<static_cast<unsigned>((threads_needed + 255) / 256), 256, 0, stream>>>(c, scratch, padded);
    }
    const bool uneven = c.right >= 0 || c.key_lengths.data != nullptr || c.packed;
    TileOrder of_queries;
    of_queries.rows_tiles = static_cast<int>((c.queries + own_tile - 1) / own_tile);
    of_queries.planes = static_cast<int>(c.entries * c.heads);
    of_queries.width = heads_together(c, c.keys, of_queries.planes, uneven);
    of_queries.last_first = c.right >= 0;
    TileOrder of_keys;
    of_keys.rows_tiles = static_cast<int>((c.keys + own_tile - 1) / own_tile);
    of_keys.planes = static_cast<int>(c.entries * c.kv_heads);
    of_keys.width = heads_together(c, c.queries * c.group, of_keys.planes, uneven);
    return launch_sweep<Keys>(stream, backward_keys<Keys>, by_key, c, of_keys, scratch, plan) &&
           launch_sweep<Queries>(stream, backward_queries<Queries>, by_query, c, of_queries, scratch, plan);
}

template <Half type>
bool launch_type(cudaStream_t stream, const AttentionCall& c, const BackwardScratch& scratch, const ForwardPlan& plan) {
    return c.head_size == 64 ? launch<64, type>(stream, c, scratch, plan) : launch<128, type>(stream, c, scratch, plan);
}

}  // namespace

bool launch_backward(void* stream, const AttentionCall& call, const BackwardScratch& scratch, const ForwardPlan& plan) {
    const auto queue = static_cast<cudaStream_t>(stream);
    return call.q.dtype == DType::bf16 ? launch_type<Half::bf16>(queue, call, scratch, plan)
                                       : launch_type<Half::f16>(queue, call, scratch, plan);
}

}  // namespace heed::cuda::sm90
