#include "cpu/quantized/quantized.h"
#include "cpu/quantized/tables.h"

namespace heed::cpu {
namespace {

// In an unnamed namespace, so that whatever is made from it stays inside this file.
struct Avx2Quantized {
    static constexpr int lanes = 8;
    static constexpr int registers = 16;
};

}  // namespace

const QuantizedKernels avx2_quantized = {.linear = quantized_product<Avx2Quantized>};

}  // namespace heed::cpu
