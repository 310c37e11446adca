#include "cpu/quantized/quantized.h"
#include "cpu/quantized/tables.h"

namespace heed::cpu {
namespace {

// In an unnamed namespace, so that whatever is made from it stays inside this file.
struct Avx512VnniQuantized {
    static constexpr int lanes = 16;
    static constexpr int registers = 32;
};

}  // namespace

const QuantizedKernels avx512bf16_quantized = {.linear = quantized_product<Avx512VnniQuantized>};

}  // namespace heed::cpu
