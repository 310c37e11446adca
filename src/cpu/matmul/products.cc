#include "cpu/matmul/products.h"

#include "cpu/instruction_sets.h"

namespace heed::cpu {

const ProductKernels& products_of(const Kernels& kernels) {
#if defined(HEED_HAS_AVX512BF16)
    if (&kernels == &amx_kernels) { return amx_products; }
    if (&kernels == &avx512bf16_kernels) { return avx512bf16_products; }
#endif
#if defined(HEED_HAS_AVX512)
    if (&kernels == &avx512_kernels) { return avx512_products; }
#endif
#if defined(HEED_HAS_AVX2)
    if (&kernels == &avx2_kernels) { return avx2_products; }
#endif
#if defined(HEED_HAS_NEON)
    if (&kernels == &neon_kernels) { return neon_products; }
#endif
    static_cast<void>(kernels);
    return portable_products;
}

std::vector<Kernel<LinearProblem>> linear_kernels() {
    using Row = Kernel<LinearProblem>;
    return rows_of_sets<Row>("tiles", []<const Kernels & kernels>(Row& row) {
        row.declines = [](const LinearProblem& p) -> const char* {
            return p.wide() ? "float64 is for the reference" : nullptr;
        };
        row.forward = [](detail::Place& place, const LinearProblem& p) { products_of(kernels).linear(*place.pool, p); };
    });
}

std::vector<Kernel<PackedProblem>> packed_kernels() {
    using Row = Kernel<PackedProblem>;
    return rows_of_sets<Row>("packed panels", []<const Kernels & kernels>(Row& row) {
        row.forward = [](detail::Place& place, const PackedProblem& p) { products_of(kernels).packed(*place.pool, p); };
    });
}

}  // namespace heed::cpu
