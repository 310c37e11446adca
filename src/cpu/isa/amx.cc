// Whoever has AMX has slow dot products of bf16 pairs (see pairs_are_slow): decoding does better without.
#define HEED_WIDENS_BF16
#include "cpu/amx.h"
#include "cpu/attention/isa.h"

namespace heed::cpu {
namespace {

// In an unnamed namespace, so that whatever is made from it stays inside this file.
struct Amx {
    static constexpr int lanes = 16;
    static constexpr int registers = 32;
};

/// Scores of 96 keys stay in the first-level cache beside weights and queries: 3 to 10 % faster than 192, where
/// vectors, which are slower, gain more from longer products.
constexpr std::int64_t tile_keys = 96;

Call with_shorter_tiles(Call call) {
    if (!call.pattern) { call.tile_keys = smaller(call.tile_keys, tile_keys); }
    return call;
}

AttentionWay amx_way(const AttentionProblem& problem) {
    AttentionWay answer = AttentionWay::each_its_own;
    with_product(
        problem, [&]<class Product>(const Call& call) { answer = way_with<Amx, Product>(with_shorter_tiles(call)); },
        [&](const AttentionFunctions& others) { answer = others.way(problem); });
    return answer;
}

void amx_forward(detail::Pool& pool, const AttentionProblem& problem, AttentionWay way) {
    with_product(
        problem,
        [&]<class Product>(const Call& given) {
            Call call = with_shorter_tiles(given);
            call.tiles_only = way == AttentionWay::tiles;
            forward_with<Amx, Product>(pool, call);
        },
        [&](const AttentionFunctions& others) { others.forward_with_bytes(pool, problem, way); });
}

}  // namespace

/// Attention in bf16; everything else is what avx512bf16_kernels has.
const Kernels amx_kernels = {
    .attention = {.way = amx_way,
                  .forward = amx_forward,
                  .forward_with_bytes = amx_forward,
                  .backward = backward<Amx>,
                  .weights = weights<Amx>},
    .rows = {.combine = [](auto... arguments) { avx512bf16_kernels.rows.combine(arguments...); },
             .dot = [](const RowAddress& a, const RowAddress& b,
                       std::int64_t size) { return avx512bf16_kernels.rows.dot(a, b, size); }},
    .matmul = [](detail::Pool& pool, const MatmulProblem& problem) { avx512bf16_kernels.matmul(pool, problem); },
    .rope = {.block = [](auto... arguments) { avx512bf16_kernels.rope.block(arguments...); }},
    .linear_attention = {.forward =
                             [](detail::Pool& pool, const LinearAttentionProblem& problem) {
                                 avx512bf16_kernels.linear_attention.forward(pool, problem);
                             },
                         .backward =
                             [](detail::Pool& pool, const LinearAttentionProblem& problem) {
                                 avx512bf16_kernels.linear_attention.backward(pool, problem);
                             }}};

}  // namespace heed::cpu
