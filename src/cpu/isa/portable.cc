#include "cpu/isa/kernels.h"

namespace heed::cpu {
namespace {

// In an unnamed namespace, so that whatever is made from it stays inside this file.
struct Portable {
    static constexpr int lanes = 4;
    static constexpr int registers = 16;
};

}  // namespace

const Kernels portable_kernels = kernels<Portable>();

}  // namespace heed::cpu
