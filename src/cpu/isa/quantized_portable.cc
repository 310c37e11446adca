#include "cpu/quantized/quantized.h"
#include "cpu/quantized/tables.h"

namespace heed::cpu {
namespace {

// In an unnamed namespace, so that whatever is made from it stays inside this file.
struct PortableQuantized {
    static constexpr int lanes = 4;
    static constexpr int registers = 16;
};

}  // namespace

const QuantizedKernels portable_quantized = {.linear = quantized_product<PortableQuantized>};

}  // namespace heed::cpu
