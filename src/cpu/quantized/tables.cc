#include "cpu/quantized/tables.h"

#include "cpu/instruction_sets.h"

namespace heed::cpu {

const QuantizedKernels& quantized_of(const Kernels& kernels) {
#if defined(HEED_HAS_AVX512BF16)
    if (&kernels == &avx512bf16_kernels || &kernels == &amx_kernels) { return avx512bf16_quantized; }
#endif
#if defined(HEED_HAS_AVX2)
#if defined(HEED_HAS_AVX512)
    // Without products of bytes, 512 bits have nothing over 256.
    if (&kernels == &avx512_kernels) { return avx2_quantized; }
#endif
    if (&kernels == &avx2_kernels) { return avx2_quantized; }
#endif
#if defined(HEED_HAS_NEON)
    if (&kernels == &neon_kernels) { return neon_quantized; }
#endif
    static_cast<void>(kernels);
    return portable_quantized;
}

std::vector<Kernel<QuantizedProblem>> quantized_kernels() {
    using Row = Kernel<QuantizedProblem>;
    return rows_of_sets<Row>("products of bytes", []<const Kernels & kernels>(Row& row) {
        row.forward = [](detail::Place& place, const QuantizedProblem& p) {
            quantized_of(kernels).linear(*place.pool, p);
        };
    });
}

}  // namespace heed::cpu
