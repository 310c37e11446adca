#include "cpu/matmul/packed.h"
#include "cpu/matmul/prepacked.h"
#include "cpu/matmul/products.h"

namespace heed::cpu {
namespace {

// In an unnamed namespace, so that whatever is made from it stays inside this file.
struct Avx512Bf16Products {
    static constexpr int lanes = 16;
    static constexpr int registers = 32;
};

}  // namespace

const ProductKernels avx512bf16_products = {.linear =
                                                [](detail::Pool& pool, const LinearProblem& problem) {
                                                    multiplies_pairs(problem.product)
                                                        ? linear_product_of_pairs<Avx512Bf16Products>(pool, problem)
                                                        : avx512_products.linear(pool, problem);
                                                },
                                            .packed =
                                                [](detail::Pool& pool, const PackedProblem& problem) {
                                                    problem.pairs
                                                        ? packed_product<Avx512Bf16Products, Bf16Product>(pool, problem)
                                                        : avx512_products.packed(pool, problem);
                                                }};

}  // namespace heed::cpu
