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
#include "cuda/sm90/backward_keys_wide.cuh"
#include "cuda/sm90/backward_queries.cuh"

namespace heed::cuda::sm90 {
namespace {

template <class Memory, class Kernel>
bool launch_sweep(cudaStream_t stream, Kernel kernel, const Maps& maps, const AttentionCall& c, const TileOrder& order,
                  const BackwardScratch& scratch, const ForwardPlan& plan) {
    const int bytes = static_cast<int>(sizeof(Memory)) + 1024;
    static_assert(sizeof(Memory) + 1024 <= 227 * 1024, "what a multiprocessor has");
    if (!plan.memo->allow_shared(kernel, bytes)) { return false; }
    const int blocks = order.total() < plan.multiprocessors ? order.total() : plan.multiprocessors;
    const int padded = static_cast<int>(BackwardScratch::padded(c.queries));
    if (blocks > 0) { kernel<<<blocks, threads, bytes, stream>>>(maps, c, order, scratch, padded, plan.counter); }
    return true;
}

template <int size, Half type, bool drops>
bool launch(cudaStream_t stream, const AttentionCall& c, const BackwardScratch& scratch, const ForwardPlan& plan) {
    // Random words take registers.
    constexpr int key_tile = size == 256 ? 48 : drops ? 64 : size == 128 ? 96 : 128;
    using Queries = Shape<size, key_tile, type, own_tile, drops>;
    using Keys = std::conditional_t<size == 256, WideKeys<type>, Shape<size, 64, type, own_tile, drops>>;
    const Extents queries{c.head_size, c.queries, c.heads, c.batch}, keys{c.head_size, c.keys, c.kv_heads, c.batch};
    Maps by_query, by_key;
    if (!plan.memo->rows_map(by_query.score[0], c.q, queries, own_tile) ||
        !plan.memo->rows_map(by_query.value[0], c.dout, queries, own_tile) ||
        !plan.memo->rows_map(by_query.score[1], c.k, keys, Queries::other_tile) ||
        !plan.memo->rows_map(by_query.value[1], c.v, keys, Queries::other_tile) ||
        !plan.memo->rows_map(by_key.score[0], c.k, keys, Keys::own_rows) ||
        !plan.memo->rows_map(by_key.value[0], c.v, keys, Keys::own_rows) ||
        !plan.memo->rows_map(by_key.score[1], c.q, queries, Keys::other_tile) ||
        !plan.memo->rows_map(by_key.value[1], c.dout, queries, Keys::other_tile)) {
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
    // Tiles of 64 go up to a multiple of 128 too: each has its flag.
    of_keys.rows_tiles = static_cast<int>((c.keys + own_tile - 1) / own_tile) * (own_tile / Keys::own_rows);
    of_keys.planes = static_cast<int>(c.entries * c.kv_heads);
    of_keys.width = heads_together(c, c.queries * c.group, of_keys.planes, uneven);
    if constexpr (size == 256) {
        if (!launch_sweep<WideMemory<Keys>>(stream, backward_keys_wide<Keys>, by_key, c, of_keys, scratch, plan)) {
            return false;
        }
    } else {
        if (!launch_sweep<Memory<Keys>>(stream, backward_keys<Keys>, by_key, c, of_keys, scratch, plan)) {
            return false;
        }
    }
    return launch_sweep<Memory<Queries>>(stream, backward_queries<Queries>, by_query, c, of_queries, scratch, plan);
}

template <Half type>
bool launch_type(cudaStream_t stream, const AttentionCall& c, const BackwardScratch& scratch, const ForwardPlan& plan) {
    if (c.head_size == 256) { return !c.drops && launch<256, type, false>(stream, c, scratch, plan); }
    if (c.head_size == 64) {
        return c.drops ? launch<64, type, true>(stream, c, scratch, plan)
                       : launch<64, type, false>(stream, c, scratch, plan);
    }
    return c.drops ? launch<128, type, true>(stream, c, scratch, plan)
                   : launch<128, type, false>(stream, c, scratch, plan);
}

}  // namespace

bool launch_backward(void* stream, const AttentionCall& call, const BackwardScratch& scratch, const ForwardPlan& plan) {
    const auto queue = static_cast<cudaStream_t>(stream);
    return call.q.dtype == DType::bf16 ? launch_type<Half::bf16>(queue, call, scratch, plan)
                                       : launch_type<Half::f16>(queue, call, scratch, plan);
}

}  // namespace heed::cuda::sm90
