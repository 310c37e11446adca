#include "cpu/layers/isa.h"

namespace heed::cpu {
namespace {

// In an unnamed namespace, so that whatever is made from it stays inside this file.
struct Avx512Layers {
    static constexpr int lanes = 16;
    static constexpr int registers = 32;
};

}  // namespace

const LayerKernels avx512_layers = layer_kernels<Avx512Layers>();

}  // namespace heed::cpu
