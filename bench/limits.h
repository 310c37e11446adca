#pragma once
/// What this machine can do, measured: the yardstick of every percentage that bench/run prints.

#include <cstddef>
#include <functional>
#include <span>

#include <heed/dtype.h>

#include "isa.h"

namespace heed::bench {

/// Runs body(0) ... body(threads - 1) on that many threads that start together; seconds from the first start to
/// the last end.
double timed_team(int threads, const std::function<void(int)>& body);

/// GFLOP/s of independent multiply-adds that never leave the registers: f32 FMA, or bf16 dot products where the
/// CPU has them (bf16 without them, and f16: the f32 figure, as sums are float32 anyway).
double peak_gflops(DType dtype, int threads, double seconds);
bool has_bf16_dot();

/// How a plain read loop walks its share of memory; which is fastest differs between machines.
struct ReadLoop {
    int streams = 1;        ///< places read in turn
    bool prefetch = false;  ///< ask for lines ahead of the hardware
};
/// Seconds in which `threads` threads read every byte of every span `iterations` times.
double read_seconds(std::span<const std::span<const std::byte>> spans, int threads, long iterations, ReadLoop loop);
struct ReadBandwidth {
    double gigabytes_per_second = 0;
    ReadLoop loop;
};
/// The fastest loop over a buffer at least eight times the last-level cache.
ReadBandwidth best_read_bandwidth(int threads);

/// Seconds in which `threads` threads copy `from` to memory of the same size, or, where that is the same memory, read
/// and write it in place.
double copy_seconds(std::span<std::byte> to, std::span<const std::byte> from, int threads);

/// 1e9 exponentials per second, from and to the first-level cache.
double exp_rate(int threads, double seconds);

/// Bytes of the last-level cache that one core sees.
std::size_t last_level_cache();

}  // namespace heed::bench
