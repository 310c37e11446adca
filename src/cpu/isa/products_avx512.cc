#include "cpu/matmul/packed.h"
#include "cpu/matmul/prepacked.h"
#include "cpu/matmul/products.h"

namespace heed::cpu {
namespace {

// In an unnamed namespace, so that whatever is made from it stays inside this file.
struct Avx512Products {
    static constexpr int lanes = 16;
    static constexpr int registers = 32;
};

}  // namespace

const ProductKernels avx512_products = {.linear = linear_product<Avx512Products>,
                                        .packed = packed_product<Avx512Products, SplitPairs>};

}  // namespace heed::cpu
