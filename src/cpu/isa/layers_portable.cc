#include "cpu/layers/isa.h"

namespace heed::cpu {
namespace {

// In an unnamed namespace, so that whatever is made from it stays inside this file.
struct PortableLayers {
    static constexpr int lanes = 4;
    static constexpr int registers = 16;
};

}  // namespace

const LayerKernels portable_layers = layer_kernels<PortableLayers>();

}  // namespace heed::cpu
