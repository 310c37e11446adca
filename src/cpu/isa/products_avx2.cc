#include "cpu/matmul/packed.h"
#include "cpu/matmul/prepacked.h"
#include "cpu/matmul/products.h"

namespace heed::cpu {
namespace {

// In an unnamed namespace, so that whatever is made from it stays inside this file.
struct Avx2Products {
    static constexpr int lanes = 8;
    static constexpr int registers = 16;
};

}  // namespace

const ProductKernels avx2_products = {.linear = linear_product<Avx2Products>,
                                      .packed = packed_product<Avx2Products, SplitPairs>};

}  // namespace heed::cpu
