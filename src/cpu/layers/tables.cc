#include "cpu/layers/tables.h"

#include "cpu/amx.h"

namespace heed::cpu {

const LayerKernels& layers_of(const Kernels& kernels) {
#if defined(HEED_HAS_AVX512BF16)
    if (&kernels == &amx_kernels) { return avx512_layers; }
    if (&kernels == &avx512bf16_kernels) { return avx512_layers; }
#endif
#if defined(HEED_HAS_AVX512)
    if (&kernels == &avx512_kernels) { return avx512_layers; }
#endif
#if defined(HEED_HAS_AVX2)
    if (&kernels == &avx2_kernels) { return avx2_layers; }
#endif
#if defined(HEED_HAS_NEON)
    if (&kernels == &neon_kernels) { return neon_layers; }
#endif
    static_cast<void>(kernels);
    return portable_layers;
}

}  // namespace heed::cpu
