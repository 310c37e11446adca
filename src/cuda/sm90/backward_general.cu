/// Backward attention for Hopper with every option: the sweeps of backward.cu, and a third one for the gradient of the
/// bias, each of which owns what it writes. What options do to a tile stands between its products, as in
/// forward_general.cu; beside it run the products of the other warpgroup.

#include "cuda/attention_any.h"
#include "cuda/sm90/backward_general_bias.cuh"
#include "cuda/sm90/backward_general_keys.cuh"
#include "cuda/sm90/backward_general_queries.cuh"

namespace heed::cuda::sm90 {
namespace {

template <class S, class Kernel>
bool launch_sweep(cudaStream_t stream, Kernel kernel, const GeneralMaps& maps, const GeneralCall& g, std::int64_t tiles,
                  const ForwardPlan& plan) {
    const int bytes = static_cast<int>(sizeof(GeneralMemory<S>)) + 1024;
    if (!plan.memo->allow_shared(kernel, bytes)) { return false; }
    const auto blocks = static_cast<unsigned>(tiles < plan.multiprocessors ? tiles : plan.multiprocessors);
    if (blocks > 0) { kernel<<<blocks, threads, bytes, stream>>>(maps, g, plan.counter); }
    return true;
}

template <int size, Half type>
bool launch(cudaStream_t stream, const AttentionCall& c, const BackwardScratch& scratch, const ForwardPlan& plan,
            const Squares& squares) {
    using S = Shape<size, 64, type>;
    const Extents queries{c.head_size, c.queries, c.heads, c.batch}, keys{c.head_size, c.keys, c.kv_heads, c.batch};
    GeneralMaps by_query{}, by_key{};
    if (!plan.memo->rows_map(by_query.tensors.score[0], c.q, queries, own_tile) ||
        !plan.memo->rows_map(by_query.tensors.value[0], c.dout, queries, own_tile) ||
        !plan.memo->rows_map(by_query.tensors.score[1], c.k, keys, S::other_tile) ||
        !plan.memo->rows_map(by_query.tensors.value[1], c.v, keys, S::other_tile) ||
        !plan.memo->rows_map(by_key.tensors.score[0], c.k, keys, own_tile) ||
        !plan.memo->rows_map(by_key.tensors.value[0], c.v, keys, own_tile) ||
        !plan.memo->rows_map(by_key.tensors.score[1], c.q, queries, S::other_tile) ||
        !plan.memo->rows_map(by_key.tensors.value[1], c.dout, queries, S::other_tile)) {
        return false;
    }
    const std::int64_t padded = BackwardScratch::padded(c.queries);
    const std::int64_t rows = c.entries * c.heads * padded;
    if (rows > 0) {
        const std::int64_t threads_needed = rows * (size / 8);
        prepare_rows<size><<<static_cast<unsigned>((threads_needed + 255) / 256), 256, 0, stream>>>(c, scratch, padded);
    }
    const bool uneven = squares.flags != nullptr || c.right >= 0 || c.key_lengths.data != nullptr || c.packed;
    GeneralCall g{c, {}, squares, scratch, static_cast<int>(padded), false};
    g.bias_is_copied =
        plan.memo->bias_map(by_query.bias, c, own_tile) && plan.memo->bias_map(by_key.bias, c, S::other_tile);
    g.order.rows_tiles = static_cast<int>((c.keys + own_tile - 1) / own_tile);
    g.order.planes = static_cast<int>(c.entries * c.kv_heads);
    g.order.width = heads_together(c, c.queries * c.group, g.order.planes, uneven);
    if (!launch_sweep<S>(stream, general_keys<S>, by_key, g, g.order.total(), plan)) { return false; }
    g.order.rows_tiles = static_cast<int>((c.queries + own_tile - 1) / own_tile);
    g.order.planes = static_cast<int>(c.entries * c.heads);
    g.order.width = heads_together(c, c.keys, g.order.planes, uneven);
    g.order.last_first = c.right >= 0;
    if (!launch_sweep<S>(stream, general_queries<S>, by_query, g, g.order.total(), plan)) { return false; }
    if (c.dbias.data == nullptr || !takes_bias_gradient(c)) { return true; }
    g.order.width = 1;  // tiles in the order of their numbers: the sweep has its own
    g.order.last_first = false;
    const std::int64_t tiles =
        c.dbias_extent[0] * c.dbias_extent[1] * g.order.rows_tiles * ((c.keys + S::other_tile - 1) / S::other_tile);
    return launch_sweep<S>(stream, general_bias<S>, by_query, g, tiles, plan);
}

}  // namespace

bool takes_bias_gradient(const AttentionCall& c) {
    return !c.packed && c.dbias_extent[2] == c.queries && c.dbias_extent[3] == c.keys &&
           c.dbias_extent[0] * c.dbias_extent[1] * (c.queries / own_tile + 1) * (c.keys / 64 + 1) < std::int64_t{1}
                                                                                                        << 30;
}

bool launch_general_backward(void* stream, const AttentionCall& c, const BackwardScratch& scratch,
                             const ForwardPlan& plan, const Squares& squares) {
    launch_squares(stream, c, squares);
    const auto queue = static_cast<cudaStream_t>(stream);
    if (c.q.dtype == DType::bf16) {
        return c.head_size == 64 ? launch<64, Half::bf16>(queue, c, scratch, plan, squares)
                                 : launch<128, Half::bf16>(queue, c, scratch, plan, squares);
    }
    return c.head_size == 64 ? launch<64, Half::f16>(queue, c, scratch, plan, squares)
                             : launch<128, Half::f16>(queue, c, scratch, plan, squares);
}

}  // namespace heed::cuda::sm90
