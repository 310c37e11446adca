#include "cpu/matmul/packed.h"
#include "cpu/matmul/prepacked.h"
#include "cpu/matmul/products.h"

namespace heed::cpu {
namespace {

// In an unnamed namespace, so that whatever is made from it stays inside this file.
struct NeonProducts {
    static constexpr int lanes = 4;
    static constexpr int registers = 32;
};

}  // namespace

const ProductKernels neon_products = {.linear = linear_product<NeonProducts>,
                                      .packed = packed_product<NeonProducts, SplitPairs>};

}  // namespace heed::cpu
