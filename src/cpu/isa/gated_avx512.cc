#include "cpu/linear_attention/gated_isa.h"

namespace heed::cpu {
namespace {

// In an unnamed namespace, so that whatever is made from it stays inside this file.
struct Avx512Gated {
    static constexpr int lanes = 16;
    static constexpr int registers = 32;
};

}  // namespace

const GatedKernels avx512_gated = {.forward = gated_forward<Avx512Gated>, .backward = gated_backward<Avx512Gated>};

}  // namespace heed::cpu
