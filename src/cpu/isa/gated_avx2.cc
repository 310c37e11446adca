#include "cpu/linear_attention/gated_isa.h"

namespace heed::cpu {
namespace {

// In an unnamed namespace, so that whatever is made from it stays inside this file.
struct Avx2Gated {
    static constexpr int lanes = 8;
    static constexpr int registers = 16;
};

}  // namespace

const GatedKernels avx2_gated = {.forward = gated_forward<Avx2Gated>, .backward = gated_backward<Avx2Gated>};

}  // namespace heed::cpu
