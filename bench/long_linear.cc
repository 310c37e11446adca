// Linear attention and Infini-attention: time against the length, against attend, against the multiply-add peak.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>

#include <unistd.h>

#include <heed/attention.h>
#include <heed/infini_attention.h>
#include <heed/linear_attention.h>

#include "limits.h"
#include "long.h"

namespace heed::bench {
namespace {

constexpr std::int64_t D = 64;

struct LongSequence {
    Tensor q, k, v, out;
    LongSequence(std::int64_t heads, std::int64_t length)
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

double resident_megabytes() {
    long pages = 0;
    long resident = 0;
    if (std::FILE* file = std::fopen("/proc/self/statm", "r")) {
        if (std::fscanf(file, "%ld %ld", &pages, &resident) != 2) { resident = 0; }
        std::fclose(file);
    }
    return static_cast<double>(resident) * static_cast<double>(sysconf(_SC_PAGESIZE)) * 1e-6;
}

}  // namespace

void linear_against_length(Context& context, const LongSettings& settings) {
    const std::int64_t heads = settings.threads;
    const std::int64_t longest_softmax = settings.quick ? 2048 : 8192;
    std::vector<std::int64_t> lengths;
    for (std::int64_t length = 64; length <= 131072; length *= 2) { lengths.push_back(length); }
    std::vector<std::unique_ptr<LongSequence>> sequences;
    std::vector<std::function<void()>> bodies;
    AttentionOptions causal;
    causal.causal = true;
    for (const std::int64_t length : lengths) {
        sequences.push_back(std::make_unique<LongSequence>(heads, length));
        LongSequence& s = *sequences.back();
        bodies.push_back([&] { linear_attend(context, s.q, s.k, s.v, s.out); });
    }
    for (std::size_t n = 0; n < lengths.size() && lengths[n] <= longest_softmax; ++n) {
        LongSequence& s = *sequences[n];
        bodies.push_back([&] { attend(context, s.q, s.k, s.v, s.out, causal); });
    }
    const std::vector<std::vector<double>> seconds = interleaved(settings, bodies);
    const std::size_t first = 4;  // T = 1024
    double crossover = 0;
    for (std::size_t n = 0; n < lengths.size(); ++n) {
        const auto per_token = [&](const std::vector<double>& x) {
            return median(x) / static_cast<double>(lengths[n]) * 1e9;
        };
        LongRow row{.section = "linear attention against the length, causal, f32, D = E = 64",
                    .name = "T=" + std::to_string(lengths[n]),
                    .figures = {{"ns/token", per_token(seconds[n])}}};
        const double growth =
            ratio(seconds[n], seconds[first]) * static_cast<double>(lengths[first]) / static_cast<double>(lengths[n]);
        if (n >= first) {
            row.figures.emplace_back("of T=1024", growth);
            row = with_bar(row, "of T=1024", growth, 1.15, true);
        }
        if (n + lengths.size() < seconds.size()) {
            const double faster = ratio(seconds[n + lengths.size()], seconds[n]);
            row.figures.emplace_back("softmax ns/token", per_token(seconds[n + lengths.size()]));
            row.figures.emplace_back("softmax/linear", faster);
            if (faster > 1 && crossover == 0) { crossover = static_cast<double>(lengths[n]); }
        }
        print(row);
    }
    print({.section = "linear attention against the length, causal, f32, D = E = 64",
           .name = "ahead of softmax from T",
           .figures = {{"tokens", crossover}}});

    const Tensor token = random_tensor({1, 32, D}, 1);
    Tensor out(DType::f32, {1, 32, D});
    Tensor state(DType::f32, {1, 32, D, D});
    Tensor z(DType::f32, {1, 32, D});
    const std::vector<std::vector<double>> step =
        interleaved(settings, {[&] {
                        linear_attend_step(context, token, token, token, out, {state, z});
                    }});
    print({.section = "linear attention against the length, causal, f32, D = E = 64",
           .name = "decoding a token, 32 heads",
           .figures = {{"us", median(step[0]) * 1e6}}});
}

void linear_against_peak(Context& context, const LongSettings& settings) {
    constexpr std::int64_t length = 8192;
    constexpr double chunk = 64;
    const std::int64_t heads = settings.threads;
    const LongSequence s(heads, length);
    Tensor out(DType::f32, s.out.shape());
    Tensor dq(DType::f32, s.q.shape());
    Tensor dk(DType::f32, s.k.shape());
    Tensor dv(DType::f32, s.v.shape());
    Tensor decay(DType::f32, {heads});
    std::fill_n(decay.as<float>(), heads, 0.99F);
    std::vector<double> peaks;
    // The peak takes its turn with the passes.
    std::vector<std::function<void()>> bodies = {
        [&] { peaks.push_back(peak_gflops(DType::f32, settings.threads, 2e-3)); }};
    for (const bool backward : {false, true}) {
        for (const bool normalise : {true, false}) {
            for (const bool decays : {false, true}) {
                LinearAttentionOptions options{.normalise = normalise, .chunk = static_cast<std::int64_t>(chunk)};
                if (decays) { options.decay = decay; }
                if (backward) {
                    bodies.push_back([&, options] {
                        linear_attend_backward(context, {.q = s.q, .k = s.k, .v = s.v, .dout = s.v},
                                               {.dq = dq, .dk = dk, .dv = dv}, options);
                    });
                } else {
                    bodies.push_back([&, options] { linear_attend(context, s.q, s.k, s.v, out, options); });
                }
            }
        }
    }
    const std::vector<std::vector<double>> seconds = interleaved(settings, bodies);
    const double peak = median(peaks);
    for (std::size_t n = 1; n < bodies.size(); ++n) {
        const bool backward = n > 4;
        const double operations = backward ? backward_operations(length, chunk) : forward_operations(length, chunk);
        const double rate = operations * static_cast<double>(heads) / median(seconds[n]) * 1e-9;
        const std::size_t variant = (n - 1) % 4;
        LongRow row{.section = "linear attention, chunks of 64, T = 8192, D = E = 64, f32: of the multiply-add peak",
                    .name = std::string(backward ? "backward" : "forward") +
                            (variant < 2 ? ", normaliser" : ", no normaliser") +
                            (variant % 2 == 0 ? ", no decay" : ", decay"),
                    .figures = {{"ms", median(seconds[n]) * 1e3},
                                {"GFLOP/s", rate},
                                {"peak GFLOP/s", peak},
                                {"% of peak", 100 * rate / peak}}};
        print(backward ? row : with_bar(row, "% of peak", 100 * rate / peak, 50, false));
    }
}

void infini_against_length(Context& context, const LongSettings& settings) {
    constexpr std::int64_t segment = 2048;
    constexpr std::int64_t calls = 512;  // 1,048,576 tokens
    constexpr std::int64_t parts = 8;
    const std::int64_t heads = settings.threads;
    LongSequence s(heads, segment);
    const Tensor gates(DType::f32, {heads});
    InfiniMemory memory;
    const InfiniOptions options{.segment = segment, .update = MemoryUpdate::delta};
    double first = 0;
    double first_bytes = 0;
    for (std::int64_t part = 0; part < parts; ++part) {
        std::vector<double> times;
        for (std::int64_t call = 0; call < calls / parts; ++call) {
            const auto begin = std::chrono::steady_clock::now();
            infini_attend(context, s.q, s.k, s.v, gates, s.out, memory, options);
            const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
            times.push_back(took.count());
        }
        const double per_token = median(times) / segment * 1e9;
        const double bytes = static_cast<double>(memory.bytes() + context.workspace_bytes());
        if (part == 0) {
            first = per_token;
            first_bytes = bytes;
        }
        LongRow row{
            .section = "Infini-attention over 1,048,576 tokens, segments of 2048, delta update, f32, D = E = 64",
            .name = "after " + std::to_string(memory.segments * segment) + " tokens",
            .figures = {{"ns/token", per_token},
                        {"of the first", per_token / first},
                        {"memory value kB", static_cast<double>(memory.bytes()) * 1e-3},
                        {"workspace kB", static_cast<double>(context.workspace_bytes()) * 1e-3},
                        {"resident MB", resident_megabytes()}}};
        row = with_bar(row, "of the first", per_token / first, 1.1, true);
        row.bar += ", same memory";
        row.met = row.met && bytes == first_bytes;
        print(row);
    }
}

}  // namespace heed::bench
