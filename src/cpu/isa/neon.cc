#include "cpu/isa/kernels.h"

namespace heed::cpu {
namespace {

// In an unnamed namespace, so that whatever is made from it stays inside this file.
struct Neon {
    static constexpr int lanes = 4;
    static constexpr int registers = 32;
};

}  // namespace

const Kernels neon_kernels = kernels<Neon>();

}  // namespace heed::cpu
