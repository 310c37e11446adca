#include "cpu/layers/isa.h"

namespace heed::cpu {
namespace {

// In an unnamed namespace, so that whatever is made from it stays inside this file.
struct NeonLayers {
    static constexpr int lanes = 4;
    static constexpr int registers = 32;
};

}  // namespace

const LayerKernels neon_layers = layer_kernels<NeonLayers>();

}  // namespace heed::cpu
