#include "cpu/attention.h"

#include "cpu/attention_call.h"
#include "cpu/isa/tables.h"

#include <vector>

namespace heed::cpu {
namespace {

std::string none() { return {}; }

#if defined(__x86_64__)
std::string lacks(bool has, const char* what) { return has ? std::string() : std::string("this CPU lacks ") + what; }

std::string without_avx2() {
    return lacks(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"),
                 "AVX2 with FMA and F16C");
}
std::string without_avx512() {
    return lacks(without_avx2().empty() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                     __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"),
                 "AVX-512 (F, BW, DQ, VL)");
}
std::string without_avx512bf16() {
    const std::string reason = without_avx512();
    return reason.empty() ? lacks(__builtin_cpu_supports("avx512bf16"), "AVX-512 BF16") : reason;
}
#endif

template <std::string (*Missing)()>
std::string declines_on(const AttentionProblem& problem) {
    static const std::string missing = Missing();
    return missing.empty() ? declines(problem) : missing;
}

template <std::string (*Missing)()>
Attention row(std::string_view name, std::string_view what, const AttentionFunctions& functions) {
    return {name, what, declines_on<Missing>, functions.forward, functions.backward, functions.weights};
}

}  // namespace

std::span<const Attention> attention_list() {
    static const std::vector<Attention> list = {
#if defined(HEED_HAS_AVX512BF16)
        row<without_avx512bf16>("cpu-avx512bf16", "tiled, AVX-512 with bf16 dot products", avx512bf16_attention),
#endif
#if defined(HEED_HAS_AVX512)
        row<without_avx512>("cpu-avx512", "tiled, AVX-512", avx512_attention),
#endif
#if defined(HEED_HAS_AVX2)
        row<without_avx2>("cpu-avx2", "tiled, AVX2 with FMA", avx2_attention),
#endif
#if defined(HEED_HAS_NEON)
        row<none>("cpu-neon", "tiled, NEON", neon_attention),
#endif
        row<none>("cpu-portable", "tiled, for any CPU", portable_attention),
    };
    return list;
}

}  // namespace heed::cpu
