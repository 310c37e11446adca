#include "cpu/linear_attention/gated_isa.h"

namespace heed::cpu {
namespace {

// In an unnamed namespace, so that whatever is made from it stays inside this file.
struct PortableGated {
    static constexpr int lanes = 4;
    static constexpr int registers = 16;
};

}  // namespace

const GatedKernels portable_gated = {.forward = gated_forward<PortableGated>,
                                     .backward = gated_backward<PortableGated>};

}  // namespace heed::cpu
