#include "cpu/isa/kernels.h"

namespace heed::cpu {
namespace {

// In an unnamed namespace, so that whatever is made from it stays inside this file.
struct Avx512 {
    static constexpr int lanes = 16;
    static constexpr int registers = 32;
};

}  // namespace

const Kernels avx512_kernels = kernels<Avx512>();

}  // namespace heed::cpu
