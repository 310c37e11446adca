#include "cpu/matmul/packed.h"
#include "cpu/matmul/prepacked.h"
#include "cpu/matmul/products.h"

namespace heed::cpu {
namespace {

// In an unnamed namespace, so that whatever is made from it stays inside this file.
struct PortableProducts {
    static constexpr int lanes = 4;
    static constexpr int registers = 16;
};

}  // namespace

const ProductKernels portable_products = {.linear = linear_product<PortableProducts>,
                                          .packed = packed_product<PortableProducts, SplitPairs>};

}  // namespace heed::cpu
