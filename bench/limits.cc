#include "limits.h"

#include <heed/attention.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

#include "exp.h"
#if HEED_BENCH_X86
#include <immintrin.h>
#endif

namespace heed::bench {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

volatile float float_sink;
volatile long integer_sink;

// Twelve chains hide a latency of six at two per cycle, and leave room in sixteen registers for the operands.
constexpr int chains = 12;

template <int Bytes>
HEED_BENCH_INLINE void fma_chains(long iterations) {
    using Float = typename FloatVector<Bytes>::type;
    const float less_than_one = float_sink * 0.F + 0.999F;
    const float small = float_sink * 0.F + 0.001F;
    const Float factor = Float{} + less_than_one;
    const Float term = Float{} + small;
    Float sum[chains];
    for (int c = 0; c < chains; ++c) { sum[c] = Float{} + static_cast<float>(c); }
    for (long n = 0; n < iterations; ++n) {
#pragma GCC unroll 12
        for (int c = 0; c < chains; ++c) { sum[c] = sum[c] * factor + term; }
    }
    Float total = {};
    for (int c = 0; c < chains; ++c) { total += sum[c]; }
    float_sink = total[0];
}

template <int Bytes>
HEED_BENCH_INLINE void exp_buffer(float* data, long count, long iterations) {
    using Float = typename FloatVector<Bytes>::type;
    constexpr long lanes = Bytes / 4;
    for (long n = 0; n < iterations; ++n) {
#pragma GCC unroll 4
        for (long i = 0; i < count; i += lanes) {
            // The input is spoiled by the result, so reflect it back into [-1, 0]: exp maps that into (0.36, 1].
            Float x = *reinterpret_cast<const Float*>(data + i) * -1.F;
            exp_in_place<Bytes>(x);
            *reinterpret_cast<Float*>(data + i) = x;
        }
    }
    float_sink = data[0];
}

template <int Bytes, int Streams, bool Prefetch>
HEED_BENCH_INLINE void read_streams(const std::byte* data, std::size_t bytes) {
    using Int = typename IntegerVector<long long, Bytes>::type;
    constexpr std::size_t step = 256;
    constexpr std::size_t ahead = 2048;
    Int sum[4] = {};
    const std::size_t part = bytes / Streams / step * step;
    for (std::size_t offset = 0; offset < part; offset += step) {
#pragma GCC unroll 8
        for (std::size_t s = 0; s < Streams; ++s) {
            const std::byte* at = data + s * part + offset;
            if constexpr (Prefetch) {
                for (std::size_t line = 0; line < step; line += 64) { __builtin_prefetch(at + ahead + line); }
            }
#pragma GCC unroll 16
            for (std::size_t b = 0; b < step; b += Bytes) {
                sum[b / Bytes % 4] += *reinterpret_cast<const Int*>(at + b);
            }
        }
    }
    for (std::size_t offset = Streams * part; offset + sizeof(Int) <= bytes; offset += sizeof(Int)) {
        sum[0] += *reinterpret_cast<const Int*>(data + offset);
    }
    const Int total = sum[0] + sum[1] + sum[2] + sum[3];
    integer_sink = static_cast<long>(total[0]);
}

template <int Bytes>
HEED_BENCH_INLINE void read_all(const std::byte* data, std::size_t bytes, ReadLoop loop) {
    if (loop.prefetch) {
        switch (loop.streams) {
            case 1: return read_streams<Bytes, 1, true>(data, bytes);
            case 2: return read_streams<Bytes, 2, true>(data, bytes);
            default: return read_streams<Bytes, 4, true>(data, bytes);
        }
    }
    switch (loop.streams) {
        case 1: return read_streams<Bytes, 1, false>(data, bytes);
        case 2: return read_streams<Bytes, 2, false>(data, bytes);
        default: return read_streams<Bytes, 4, false>(data, bytes);
    }
}

template <int Bytes>
HEED_BENCH_INLINE void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
    using Int = typename IntegerVector<long long, Bytes>::type;
    constexpr std::size_t step = 4 * sizeof(Int);
    const Int none = Int{} + static_cast<long long>(integer_sink * 0);  // unknown here: in place, too, it has to write
    std::size_t offset = 0;
    for (; offset + step <= bytes; offset += step) {
#pragma GCC unroll 4
        for (std::size_t n = 0; n < step; n += sizeof(Int)) {
            *reinterpret_cast<Int*>(to + offset + n) = *reinterpret_cast<const Int*>(from + offset + n) ^ none;
        }
    }
    for (; offset < bytes; ++offset) { to[offset] = from[offset]; }
}

// One function per instruction set; the bodies above are inlined into them.
void fma_portable(long n) { fma_chains<16>(n); }
void exp_portable(float* data, long count, long n) { exp_buffer<16>(data, count, n); }
void read_portable(const std::byte* data, std::size_t bytes, ReadLoop loop) { read_all<16>(data, bytes, loop); }
void copy_portable(std::byte* to, const std::byte* from, std::size_t bytes) { copy_bytes<16>(to, from, bytes); }
#if HEED_BENCH_X86
HEED_BENCH_AVX2 void fma_avx2(long n) { fma_chains<32>(n); }
HEED_BENCH_AVX512 void fma_avx512(long n) { fma_chains<64>(n); }
HEED_BENCH_AVX2 void exp_avx2(float* data, long count, long n) { exp_buffer<32>(data, count, n); }
HEED_BENCH_AVX512 void exp_avx512(float* data, long count, long n) { exp_buffer<64>(data, count, n); }
HEED_BENCH_AVX2 void read_avx2(const std::byte* data, std::size_t bytes, ReadLoop loop) {
    read_all<32>(data, bytes, loop);
}
HEED_BENCH_AVX2 void copy_avx2(std::byte* to, const std::byte* from, std::size_t bytes) {
    copy_bytes<32>(to, from, bytes);
}
HEED_BENCH_AVX512 void copy_avx512(std::byte* to, const std::byte* from, std::size_t bytes) {
    copy_bytes<64>(to, from, bytes);
}
HEED_BENCH_AVX512 void read_avx512(const std::byte* data, std::size_t bytes, ReadLoop loop) {
    read_all<64>(data, bytes, loop);
}
HEED_BENCH_AVX512BF16 void dot_avx512bf16(long iterations) {
    const auto operand = reinterpret_cast<__m512bh>(_mm512_set1_epi32(0x3c003c00 + static_cast<int>(float_sink * 0.F)));
    __m512 sum[chains];
    for (int c = 0; c < chains; ++c) { sum[c] = _mm512_set1_ps(static_cast<float>(c)); }
    for (long n = 0; n < iterations; ++n) {
#pragma GCC unroll 12
        for (int c = 0; c < chains; ++c) { sum[c] = _mm512_dpbf16_ps(sum[c], operand, operand); }
    }
    __m512 total = _mm512_setzero_ps();
    for (int c = 0; c < chains; ++c) { total = _mm512_add_ps(total, sum[c]); }
    float_sink = _mm512_cvtss_f32(total);
}

/// Products of tiles, each with a load from the first-level cache, as no kernel does with fewer.
void dot_amx(long iterations) {
    alignas(64) static const float zeros[16 * 16] = {};
    alignas(64) unsigned char config[64] = {1};
    for (int t = 0; t < 8; ++t) {
        config[16 + 2 * t] = 64;
        config[48 + t] = 16;
    }
    const long stride = 64;
    asm volatile("ldtilecfg %0\n tilezero %%tmm0\n tilezero %%tmm1\n tilezero %%tmm2\n tilezero %%tmm3" ::"m"(config)
                 : "memory");
    for (long n = 0; n < iterations; ++n) {
        asm volatile(
            "tileloadd (%0,%1,1), %%tmm4\n tileloadd (%0,%1,1), %%tmm6\n tdpbf16ps %%tmm6, %%tmm4, %%tmm0\n"
            "tileloadd (%0,%1,1), %%tmm7\n tdpbf16ps %%tmm7, %%tmm4, %%tmm1\n"
            "tileloadd (%0,%1,1), %%tmm5\n tdpbf16ps %%tmm6, %%tmm5, %%tmm2\n tdpbf16ps %%tmm7, %%tmm5, %%tmm3" ::"r"(
                zeros),
            "r"(stride)
            : "memory");
    }
    asm volatile("tilerelease" ::: "memory");
}

/// heed knows, and has the system's permission.
bool has_tiles() {
    for (const KernelVerdict& verdict : explain({.dtype = DType::bf16}).verdicts) {
        if (verdict.kernel == "cpu-amx") { return verdict.fits; }
    }
    return false;
}
#endif

struct Loops {
    void (*fma)(long);
    void (*dot)(long);
    void (*exponential)(float*, long, long);
    void (*read)(const std::byte*, std::size_t, ReadLoop);
    void (*copy)(std::byte*, const std::byte*, std::size_t);
    double fma_flops;  ///< of one iteration
    double dot_flops;
};

const Loops& loops() {
    static const Loops chosen = [] {
        constexpr double flops = 2.0 * chains;  // a multiply and an add per lane
        Loops result{fma_portable, nullptr, exp_portable, read_portable, copy_portable, flops * 4, 0};
#if HEED_BENCH_X86
        if (machine_isa() >= Isa::avx2) { result = {fma_avx2, nullptr, exp_avx2, read_avx2, copy_avx2, flops * 8, 0}; }
        if (machine_isa() >= Isa::avx512) {
            result = {fma_avx512, nullptr, exp_avx512, read_avx512, copy_avx512, flops * 16, 0};
        }
        if (machine_isa() >= Isa::avx512bf16) {
            result.dot = dot_avx512bf16;
            result.dot_flops = flops * 32;
        }
        if (has_tiles()) {
            result.dot = dot_amx;
            result.dot_flops = 4 * 2.0 * 16 * 16 * 32;
        }
#endif
        return result;
    }();
    return chosen;
}

/// Iterations of `body` that take about `seconds` on one thread.
template <class Body>
long calibrated(double seconds, const Body& body) {
    long iterations = 1024;
    for (;;) {
        const double start = now();
        body(iterations);
        const double taken = now() - start;
        if (taken > 1e-3) { return std::max(1L, static_cast<long>(static_cast<double>(iterations) * seconds / taken)); }
        iterations *= 4;
    }
}

}  // namespace

Isa machine_isa() {
#if HEED_BENCH_X86
    static const Isa isa = [] {
        __builtin_cpu_init();
        const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
        const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
        if (avx512 && __builtin_cpu_supports("avx512bf16")) { return Isa::avx512bf16; }
        return avx512 ? Isa::avx512 : avx2 ? Isa::avx2 : Isa::portable;
    }();
    return isa;
#else
    return Isa::portable;
#endif
}

std::string_view name_of(Isa isa) {
    switch (isa) {
        case Isa::portable: return "portable";
        case Isa::avx2: return "avx2";
        case Isa::avx512: return "avx512";
        case Isa::avx512bf16: return "avx512bf16";
    }
    return "";
}

double timed_team(int threads, const std::function<void(int)>& body) {
    const auto size = static_cast<std::size_t>(threads);
    std::vector<double> begin(size);
    std::vector<double> end(size);
    std::barrier<> together(threads);
    const auto member = [&](int index) {
        together.arrive_and_wait();
        begin[static_cast<std::size_t>(index)] = now();
        body(index);
        end[static_cast<std::size_t>(index)] = now();
    };
    std::vector<std::thread> others;
    for (int index = 1; index < threads; ++index) { others.emplace_back(member, index); }
    member(0);
    for (std::thread& other : others) { other.join(); }
    return *std::max_element(end.begin(), end.end()) - *std::min_element(begin.begin(), begin.end());
}

bool has_bf16_dot() { return loops().dot != nullptr; }

double peak_gflops(DType dtype, int threads, double seconds) {
    const bool dot = dtype == DType::bf16 && has_bf16_dot();
    const auto run = dot ? loops().dot : loops().fma;
    const long iterations = calibrated(seconds, run);
    const double taken = timed_team(threads, [&](int) { run(iterations); });
    return (dot ? loops().dot_flops : loops().fma_flops) * static_cast<double>(iterations) * threads / taken * 1e-9;
}

double read_seconds(std::span<const std::span<const std::byte>> spans, int threads, long iterations, ReadLoop loop) {
    return timed_team(threads, [&](int index) {
        for (long n = 0; n < iterations; ++n) {
            for (const std::span<const std::byte> span : spans) {
                const std::size_t share = span.size() / static_cast<std::size_t>(threads) / 256 * 256;
                const std::size_t begin = share * static_cast<std::size_t>(index);
                const std::size_t bytes = index == threads - 1 ? span.size() - begin : share;
                loops().read(span.data() + begin, bytes, loop);
            }
        }
    });
}

double copy_seconds(std::span<std::byte> to, std::span<const std::byte> from, int threads) {
    return timed_team(threads, [&](int index) {
        const std::size_t share = from.size() / static_cast<std::size_t>(threads) / 256 * 256;
        const std::size_t begin = share * static_cast<std::size_t>(index);
        const std::size_t bytes = index == threads - 1 ? from.size() - begin : share;
        loops().copy(to.data() + begin, from.data() + begin, bytes);
    });
}

ReadBandwidth best_read_bandwidth(int threads) {
    const std::size_t bytes = std::max<std::size_t>(std::size_t{512} << 20, 8 * last_level_cache());
    const std::unique_ptr<std::byte, decltype(&std::free)> memory(
        static_cast<std::byte*>(std::aligned_alloc(4096, bytes)), &std::free);
    if (!memory) { throw std::bad_alloc(); }
    std::fill_n(memory.get(), bytes, std::byte{1});
    const std::span<const std::byte> span(memory.get(), bytes);
    ReadBandwidth best;
    for (int round = 0; round < 3; ++round) {
        for (const int streams : {1, 2, 4}) {
            for (const bool prefetch : {false, true}) {
                const ReadLoop loop{streams, prefetch};
                const double seconds = read_seconds({&span, 1}, threads, 1, loop);
                const double rate = static_cast<double>(bytes) / seconds * 1e-9;
                if (rate > best.gigabytes_per_second) { best = {rate, loop}; }
            }
        }
    }
    return best;
}

double exp_rate(int threads, double seconds) {
    constexpr long count = 2048;  // 8 KiB
    const auto fresh = [] { return std::vector<float>(count, 0.5F); };
    const long iterations = calibrated(seconds, [&](long n) {
        std::vector<float> data = fresh();
        loops().exponential(data.data(), count, n);
    });
    const double taken = timed_team(threads, [&](int) {
        std::vector<float> data = fresh();
        loops().exponential(data.data(), count, iterations);
    });
    return static_cast<double>(count) * static_cast<double>(iterations) * threads / taken * 1e-9;
}

std::size_t last_level_cache() {
    // sysfs knows how the cache is shared; sysconf may add up the caches of every socket.
    for (const char* level : {"index3", "index2"}) {
        std::ifstream file(std::string("/sys/devices/system/cpu/cpu0/cache/") + level + "/size");
        std::size_t size = 0;
        char unit = 0;
        if (file >> size >> unit) { return size << (unit == 'M' ? 20 : unit == 'K' ? 10 : 0); }
    }
    const long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
    return bytes > 0 ? static_cast<std::size_t>(bytes) : std::size_t{32} << 20;
}

}  // namespace heed::bench
