#include "cpu/quantized/quantized.h"
#include "cpu/quantized/tables.h"

namespace heed::cpu {
namespace {

// In an unnamed namespace, so that whatever is made from it stays inside this file.
struct NeonQuantized {
    static constexpr int lanes = 4;
    static constexpr int registers = 32;
};

}  // namespace

const QuantizedKernels neon_quantized = {.linear = quantized_product<NeonQuantized>};

}  // namespace heed::cpu
