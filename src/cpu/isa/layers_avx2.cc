#include "cpu/layers/isa.h"

namespace heed::cpu {
namespace {

// In an unnamed namespace, so that whatever is made from it stays inside this file.
struct Avx2Layers {
    static constexpr int lanes = 8;
    static constexpr int registers = 16;
};

}  // namespace

const LayerKernels avx2_layers = layer_kernels<Avx2Layers>();

}  // namespace heed::cpu
