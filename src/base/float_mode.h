#pragma once
#include <cstdint>

namespace heed::detail {

/// Numbers too small to be normal are computed with, and nothing traps, on whatever thread a task runs; afterwards the
/// thread is as it was. Otherwise results would depend on who runs what: torch.set_flush_denormal changes the calling
/// thread and not the others.
class FloatMode {
public:
    FloatMode() : before_(read()) {
        if (before_ != plain) { write(plain); }
    }
    ~FloatMode() {
        if (before_ != plain) { write(before_); }
    }
    FloatMode(const FloatMode&) = delete;
    FloatMode& operator=(const FloatMode&) = delete;

private:
#if defined(__x86_64__)
    static constexpr std::uint64_t plain = 0x1F80;
    // The lowest bits say what has happened so far, which makes no difference.
    static std::uint64_t read() { return __builtin_ia32_stmxcsr() & ~std::uint64_t{0x3F}; }
    static void write(std::uint64_t mode) { __builtin_ia32_ldmxcsr(static_cast<unsigned>(mode)); }
#elif defined(__aarch64__)
    static constexpr std::uint64_t plain = 0;
    static std::uint64_t read() {
        std::uint64_t mode = 0;
        asm volatile("mrs %0, fpcr" : "=r"(mode));
        return mode;
    }
    static void write(std::uint64_t mode) { asm volatile("msr fpcr, %0" ::"r"(mode)); }
#else
    static constexpr std::uint64_t plain = 0;
    static std::uint64_t read() { return plain; }
    static void write(std::uint64_t) {}
#endif
    std::uint64_t before_;
};

}  // namespace heed::detail
