#include "cpu/isa/kernels.h"

namespace heed::cpu {
namespace {

// In an unnamed namespace, so that whatever is made from it stays inside this file.
struct Avx2 {
    static constexpr int lanes = 8;
    static constexpr int registers = 16;
};

}  // namespace

const Kernels avx2_kernels = kernels<Avx2>();

}  // namespace heed::cpu
