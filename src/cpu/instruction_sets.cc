#include "cpu/instruction_sets.h"

#include "cpu/attention/call.h"

#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace heed::cpu {
namespace {

#if defined(__x86_64__)
// Which of these are needed depends on the instruction sets that are built.
/// Clang's __builtin_cpu_supports does not know "f16c".
bool has_f16c() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

[[maybe_unused]] const char* without_avx2() {
    const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    return has ? nullptr : "this CPU lacks AVX2 with FMA and F16C";
}
[[maybe_unused]] const char* without_avx512() {
    const bool has = without_avx2() == nullptr && __builtin_cpu_supports("avx512f") &&
                     __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                     __builtin_cpu_supports("avx512vl");
    return has ? nullptr : "this CPU lacks AVX-512 (F, BW, DQ, VL)";
}
[[maybe_unused]] const char* without_avx512bf16() {
    if (const char* missing = without_avx512()) { return missing; }
    const bool has = __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
    return has ? nullptr : "this CPU lacks AVX-512 BF16 and VNNI";
}
#endif

}  // namespace

std::span<const InstructionSet> instruction_sets() {
    static const std::vector<InstructionSet> list = {
#if defined(HEED_HAS_AVX512BF16)
        {"amx", "AMX tiles in bf16, otherwise AVX-512", without_amx(without_avx512bf16()), &amx_kernels},
        {"avx512bf16",
         pairs_are_slow() ? "AVX-512; bf16 is widened, as this CPU's bf16 dot products are slow"
                          : "AVX-512 with bf16 dot products",
         without_avx512bf16(), &avx512bf16_kernels},
#endif
#if defined(HEED_HAS_AVX512)
        {"avx512", "AVX-512", without_avx512(), &avx512_kernels},
#endif
#if defined(HEED_HAS_AVX2)
        {"avx2", "AVX2 with FMA", without_avx2(), &avx2_kernels},
#endif
#if defined(HEED_HAS_NEON)
        {"neon", "NEON", nullptr, &neon_kernels},
#endif
        {"portable", "any CPU", nullptr, &portable_kernels},
    };
    return list;
}

const InstructionSet& instruction_set() {
    static const InstructionSet& best = []() -> const InstructionSet& {
        for (const InstructionSet& set : instruction_sets()) {
            if (set.missing == nullptr) { return set; }
        }
        return instruction_sets().back();
    }();
    return best;
}

}  // namespace heed::cpu
