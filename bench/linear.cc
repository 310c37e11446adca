// heed_bench_linear: linear attention and Infini-attention against the length, against attend and against the limits of
// this machine. docs/linear-attention.md and docs/infini-attention.md say what the figures mean.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include <unistd.h>

#include <heed/attention.h>
#include <heed/infini_attention.h>
#include <heed/linear_attention.h>
#include <heed/tensor.h>

#include "limits.h"

namespace {

using heed::Context;
using heed::DType;
using heed::Shape;
using heed::Tensor;

constexpr std::int64_t D = 64;

struct Settings {
    int threads = 1;
    bool quick = false;
};

/// One thread: time on the CPU, so that other programs on the machine do not count. Several: time on the wall.
double now(const Settings& settings) {
    if (settings.threads == 1) {
        timespec t{};
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
        return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Tensor random_tensor(const Shape& shape, unsigned seed) {
    Tensor tensor = Tensor::uninitialised(DType::f32, shape);
    std::minstd_rand generator(seed);
    std::uniform_real_distribution<float> draw(-1, 1);
    for (std::int64_t n = 0; n < tensor.elements(); ++n) { tensor.as<float>()[n] = draw(generator); }
    return tensor;
}

/// Best of several runs; the number of them follows from how long the first takes.
double best_seconds(const Settings& settings, const std::function<void()>& body) {
    double best = 1e30;
    double spent = 0;
    const double enough = settings.quick ? 0.1 : 0.5;
    for (int n = 0; n < 3 || (spent < enough && n < 200); ++n) {
        const double begin = now(settings);
        body();
        const double seconds = now(settings) - begin;
        if (n > 0) { best = std::min(best, seconds); }
        spent += seconds;
    }
    return best;
}

struct Sequence {
    Tensor q, k, v, out;
    Sequence(std::int64_t heads, std::int64_t length)
        : q(random_tensor({1, heads, length, D}, 1)),
          k(random_tensor({1, heads, length, D}, 2)),
          v(random_tensor({1, heads, length, D}, 3)),
          out(DType::f32, {1, heads, length, D}) {}
};

/// Multiplications and additions of the chunked form, what the causal mask hides left out: per token (C + 1)(D + E)
/// inside the chunk and 4 D E with the state.
double forward_operations(double length, double chunk) { return length * ((chunk + 1) * 2 * D + 4.0 * D * D); }
/// Backward: six such products inside the chunk (scores and their gradient, the latter twice, and three sums over
/// them), and five with the state.
double backward_operations(double length, double chunk) { return length * ((chunk + 1) * 6 * D + 10.0 * D * D); }

void against_the_peak(Context& context, const Settings& settings) {
    double peak = 0;
    for (int n = 0; n < 30; ++n) {
        peak = std::max(peak, heed::bench::peak_gflops(DType::f32, settings.threads, 2e-3));
    }
    std::printf("f32 multiply-adds on %d thread%s: %.0f GFLOP/s\n\n", settings.threads,
                settings.threads == 1 ? "" : "s", peak);
    std::printf("Linear attention, T = 8192, D = E = 64, chunks of 64: share of that\n\n");
    std::printf("| normaliser | decay | forward | | backward | |\n| --- | --- | --- | --- | --- | --- |\n");
    constexpr std::int64_t length = 8192;
    const std::int64_t heads = settings.threads;
    const Sequence s(heads, length);
    Tensor out(DType::f32, s.out.shape());
    Tensor dq(DType::f32, s.q.shape());
    Tensor dk(DType::f32, s.k.shape());
    Tensor dv(DType::f32, s.v.shape());
    const Tensor decay = [&] {
        Tensor tensor(DType::f32, {heads});
        std::fill_n(tensor.as<float>(), heads, 0.99F);
        return tensor;
    }();
    for (const bool normalise : {true, false}) {
        for (const bool decays : {false, true}) {
            heed::LinearAttentionOptions options{.normalise = normalise, .chunk = 64};
            if (decays) { options.decay = decay; }
            const double forward =
                best_seconds(settings, [&] { heed::linear_attend(context, s.q, s.k, s.v, out, options); });
            const double backward = best_seconds(settings, [&] {
                heed::linear_attend_backward(context, s.q, s.k, s.v, s.v, {dq, dk, dv, {}}, options);
            });
            const auto share = [&](double operations, double seconds) {
                return 100 * operations * static_cast<double>(heads) / seconds / (peak * 1e9);
            };
            std::printf("| %s | %s | %.2f ms | %.0f %% | %.2f ms | %.0f %% |\n", normalise ? "yes" : "no",
                        decays ? "yes" : "no", forward * 1e3, share(forward_operations(length, 64), forward),
                        backward * 1e3, share(backward_operations(length, 64), backward));
        }
    }
    std::printf("\n");
}

void against_the_length(Context& context, const Settings& settings) {
    std::printf("Nanoseconds a token and head, causal, D = E = 64\n\n");
    std::printf("| T | linear | against 1k | softmax (attend) | softmax / linear |\n");
    std::printf("| --- | --- | --- | --- | --- |\n");
    const std::int64_t heads = settings.threads;
    const std::int64_t longest_softmax = settings.quick ? 8192 : 32768;
    double first = 0;
    std::vector<std::int64_t> lengths = {64, 128, 256, 512};
    for (std::int64_t length = 1024; length <= 131072; length *= 2) { lengths.push_back(length); }
    for (const std::int64_t length : lengths) {
        Sequence s(heads, length);
        const double tokens = static_cast<double>(length * heads) / settings.threads;
        const double linear =
            best_seconds(settings, [&] { heed::linear_attend(context, s.q, s.k, s.v, s.out); }) / tokens * 1e9;
        if (length == 1024) { first = linear; }
        std::printf("| %ld | %.0f | ", static_cast<long>(length), linear);
        std::printf(length < 1024 ? "| " : "%.2f | ", linear / first);
        if (length > longest_softmax) {
            std::printf("| |\n");
            continue;
        }
        heed::AttentionOptions options;
        options.causal = true;
        const double softmax =
            best_seconds(settings, [&] { heed::attend(context, s.q, s.k, s.v, s.out, options); }) / tokens * 1e9;
        std::printf("%.0f | %.2f |\n", softmax, softmax / linear);
    }
    std::printf("\nDecoding, one token of 32 heads: ");
    const Tensor q = random_tensor({1, 32, D}, 1);
    Tensor out(DType::f32, {1, 32, D});
    Tensor state(DType::f32, {1, 32, D, D});
    Tensor z(DType::f32, {1, 32, D});
    const double step = best_seconds(settings, [&] {
        for (int n = 0; n < 100; ++n) {
            heed::linear_attend_step(context, q, q, q, out, {state, z}, {.normalise = true});
        }
    });
    std::printf("%.1f us\n\n", step / 100 * 1e6);
}

long resident_kilobytes() {
    long pages = 0;
    long resident = 0;
    if (std::FILE* file = std::fopen("/proc/self/statm", "r")) {
        if (std::fscanf(file, "%ld %ld", &pages, &resident) != 2) { resident = 0; }
        std::fclose(file);
    }
    return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

void infini(Context& context, const Settings& settings) {
    constexpr std::int64_t segment = 2048;
    constexpr std::int64_t calls = 512;  // 1,048,576 tokens
    const std::int64_t heads = settings.threads;
    std::printf("Infini-attention, 1,048,576 tokens in calls of 2048 (a segment), D = E = 64, delta update\n\n");
    std::printf("| tokens seen | ns a token and head | memory value | scratch | resident |\n");
    std::printf("| --- | --- | --- | --- | --- |\n");
    Sequence s(heads, segment);
    Tensor gates(DType::f32, {heads});
    heed::InfiniMemory memory;
    const heed::InfiniOptions options{.segment = segment, .update = heed::MemoryUpdate::delta};
    for (std::int64_t part = 0; part < 8; ++part) {
        // The median of the calls: the first eighth holds the first call, which allocates.
        std::vector<double> times;
        for (std::int64_t call = 0; call < calls / 8; ++call) {
            const double begin = now(settings);
            heed::infini_attend(context, s.q, s.k, s.v, gates, s.out, memory, options);
            times.push_back(now(settings) - begin);
        }
        std::nth_element(times.begin(), times.begin() + calls / 16, times.end());
        const double seconds = times[static_cast<std::size_t>(calls / 16)];
        std::printf("| %ld | %.0f | %zu B | %zu KiB | %ld KiB |\n", static_cast<long>(memory.segments * segment),
                    seconds / segment * 1e9, memory.bytes(), context.workspace_bytes() / 1024, resident_kilobytes());
    }
    std::printf("\n");
}

}  // namespace

int main(int argc, char** argv) {
    Settings settings;
    for (int n = 1; n < argc; ++n) {
        if (std::strcmp(argv[n], "--quick") == 0) {
            settings.quick = true;
        } else if (std::strcmp(argv[n], "--threads") == 0 && n + 1 < argc) {
            settings.threads = std::max(1, std::stoi(argv[++n]));
        } else {
            std::fprintf(stderr, "heed_bench_linear [--quick] [--threads N]\n");
            return 2;
        }
    }
    Context context(settings.threads);
    against_the_peak(context, settings);
    against_the_length(context, settings);
    infini(context, settings);
    return 0;
}
