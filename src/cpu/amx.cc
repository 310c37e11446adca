#include "cpu/amx.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#endif

namespace heed::cpu {

#if defined(HEED_AMX_IS_MODELLED)

const char* without_amx(const char* missing) { return missing; }

#elif defined(__x86_64__) && defined(__linux__)

namespace {

struct CpuId {
    unsigned a = 0, b = 0, c = 0, d = 0;
    CpuId(unsigned leaf, unsigned part) {
        if (__get_cpuid_max(leaf & 0x80000000U, nullptr) >= leaf) { __cpuid_count(leaf, part, a, b, c, d); }
    }
};

bool cpu_has_tiles() {
    constexpr unsigned bf16 = 1U << 22, tile = 1U << 24;
    const CpuId features(7, 0);
    const CpuId palette(0x1D, 1);
    // Eight tiles of 1024 bytes, rows of 64, 16 of them: what the kernels are made for.
    return (features.d & bf16) != 0 && (features.d & tile) != 0 && palette.a >> 16 == 1024 &&
           (palette.b & 0xFFFFU) == 64 && palette.b >> 16 >= 8 && (palette.c & 0xFFFFU) >= 16;
}

bool system_saves_tiles() {
    constexpr unsigned osxsave = 1U << 27;
    if ((CpuId(1, 0).c & osxsave) == 0) { return false; }
    std::uint32_t low = 0, high = 0;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    constexpr std::uint32_t tiles = 3U << 17;
    return (low & tiles) == tiles;
}

/// Linux gives the memory for saving tiles only to who asks. For good, and to all threads.
bool system_permits_tiles() {
    constexpr long request_permission = 0x1023, tile_data = 18;
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

}  // namespace

const char* without_amx(const char* missing) {
    if (missing != nullptr) { return missing; }
    if (!cpu_has_tiles()) { return "this CPU lacks AMX with bf16"; }
    if (!system_saves_tiles()) { return "the system does not save AMX tiles"; }
    if (!system_permits_tiles()) { return "the system refuses AMX to this process"; }
    return nullptr;
}

#else

const char* without_amx(const char*) { return "no AMX on this system"; }

#endif

}  // namespace heed::cpu
