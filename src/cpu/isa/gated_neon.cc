#include "cpu/linear_attention/gated_isa.h"

namespace heed::cpu {
namespace {

// In an unnamed namespace, so that whatever is made from it stays inside this file.
struct NeonGated {
    static constexpr int lanes = 4;
    static constexpr int registers = 32;
};

}  // namespace

const GatedKernels neon_gated = {.forward = gated_forward<NeonGated>, .backward = gated_backward<NeonGated>};

}  // namespace heed::cpu
