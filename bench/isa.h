#pragma once
/// Vector code for several instruction sets in one binary: a body is a template over the vector's size, forced
/// inline into one function per instruction set, and the widest set that this machine has is taken at run time.

#include <string_view>

namespace heed::bench {

enum class Isa { portable, avx2, avx512, avx512bf16 };

/// The best this machine has. (portable: whatever the compiler's baseline is; on AArch64 that is NEON.)
Isa machine_isa();
std::string_view name_of(Isa isa);

/// A vector of floats, `Bytes` wide. Never a by-value parameter: its passing depends on the instruction set.
template <int Bytes>
struct FloatVector {
    typedef float type __attribute__((vector_size(Bytes), aligned(4), may_alias));
};
template <class Integer, int Bytes>
struct IntegerVector {
    typedef Integer type __attribute__((vector_size(Bytes), aligned(2), may_alias));
};

#define HEED_BENCH_INLINE [[gnu::always_inline]] inline
#if defined(__x86_64__)
#define HEED_BENCH_X86 1
#define HEED_BENCH_AVX2 __attribute__((target("avx2,fma")))
#define HEED_BENCH_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")))
#define HEED_BENCH_AVX512BF16 __attribute__((target("avx512bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")))
#else
#define HEED_BENCH_X86 0
#endif

}  // namespace heed::bench
