#include "cpu/matmul/products.h"
#include "cpu/matmul/tile_products.h"

namespace heed::cpu {
namespace {

// In an unnamed namespace, so that whatever is made from it stays inside this file.
struct AmxProducts {
    static constexpr int lanes = 16;
    static constexpr int registers = 32;
};

#if defined(HEED_MODEL_TILES)
using Tiles = ModelTiles;
#else
using Tiles = AmxTiles;
#endif

}  // namespace

/// Products in bf16; the others are those of avx512_products.
const ProductKernels amx_products = {
    .linear =
        [](detail::Pool& pool, const LinearProblem& problem) {
            multiplies_pairs(problem.product) ? linear_on_tiles<AmxProducts, Tiles>(pool, problem)
                                              : avx512_products.linear(pool, problem);
        },
    .packed =
        [](detail::Pool& pool, const PackedProblem& problem) {
            problem.pairs ? packed_on_tiles<AmxProducts, Tiles>(pool, problem) : avx512_products.packed(pool, problem);
        }};

}  // namespace heed::cpu
