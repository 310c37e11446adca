// heed_bench_operations: what stands around attention, as ratios measured in one run.
//
//   heed_bench_operations sparse [--threads N]    time of sparse patterns against the blocks they visit
//   heed_bench_operations matmul [--threads N]    the matrix product against oneDNN and the peak
//   heed_bench_operations mla [--threads N]       MLA decoding, absorbed against expanded
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include <heed/attention.h>
#include <heed/matmul.h>
#include <heed/mla.h>
#include <heed/tensor.h>

#include "limits.h"
#include "matmul.h"

namespace {

using heed::Context;
using heed::DType;
using heed::Pattern;
using heed::Tensor;
using heed::View;

constexpr int rounds = 7;

Tensor filled(const heed::Shape& shape, unsigned seed) {
    Tensor tensor(DType::f32, shape);
    std::uint32_t state = seed * 2654435761U + 1;
    for (std::int64_t n = 0; n < tensor.elements(); ++n) {
        state = state * 1664525U + 1013904223U;
        tensor.as<float>()[n] = static_cast<float>(state >> 8) * 0x1p-23F - 1;
    }
    return tensor;
}

/// The best of some rounds in which every body runs in turn, so that a change of the machine's speed meets all alike.
std::vector<double> interleaved(const std::vector<std::function<void()>>& bodies) {
    std::vector<double> best(bodies.size(), std::numeric_limits<double>::infinity());
    for (int round = 0; round < rounds; ++round) {
        for (std::size_t n = 0; n < bodies.size(); ++n) {
            const auto start = std::chrono::steady_clock::now();
            bodies[n]();
            const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
            best[n] = std::min(best[n], took.count());
        }
    }
    return best;
}

/// Share of the blocks of 64 x 64 that a kernel has to visit, over all heads.
double visited_share(const Pattern& pattern, std::int64_t length, std::int64_t heads) {
    constexpr std::int64_t block = 64;
    std::int64_t visited = 0, total = 0;
    for (std::int64_t head = 0; head < heads; ++head) {
        for (std::int64_t i = 0; i < length; i += block) {
            for (std::int64_t j = 0; j < length; j += block, ++total) {
                const heed::Cover cover = pattern.cover({.batch = 0,
                                                         .head = head,
                                                         .query_begin = i,
                                                         .query_end = i + block,
                                                         .key_begin = j,
                                                         .key_end = j + block});
                visited += cover == heed::Cover::none ? 0 : 1;
            }
        }
    }
    return static_cast<double>(visited) / static_cast<double>(total);
}

void sparse(Context& context) {
    constexpr std::int64_t length = 4096, heads = 2, size = 64;
    const char* patterns[] = {"everything",
                              "causal",
                              "causal & window(1023, 0)",
                              "causal & window(255, 0)",
                              "causal & (prefix(64) | window(511, 0))",
                              "window(256, 256) | global(0)",
                              "causal & fixed(512, 64)",
                              "random_blocks(64, 64, 8, 1)",
                              "document(0*500, 1*1500, 2*96, 3*2000)"};
    const Tensor q = filled({1, heads, length, size}, 1), k = filled({1, heads, length, size}, 2),
                 v = filled({1, heads, length, size}, 3), dout = filled({1, heads, length, size}, 4);
    Tensor out(DType::f32, q.shape()), lse(DType::f32, {1, heads, length});
    Tensor dq(DType::f32, q.shape()), dk(DType::f32, q.shape()), dv(DType::f32, q.shape());
    for (const bool backward : {false, true}) {
        std::vector<std::function<void()>> bodies;
        for (const char* text : patterns) {
            heed::AttentionOptions options;
            options.pattern = heed::patterns::parse(text);
            if (backward) {
                bodies.push_back([&, options] {
                    heed::attend_backward(context, q, k, v, out, lse, dout, {dq, dk, dv, {}, {}, {}}, options);
                });
            } else {
                bodies.push_back([&, options] { heed::attend(context, q, k, v, out, options, lse); });
            }
        }
        const std::vector<double> seconds = interleaved(bodies);
        std::printf("%s, T = S = %d, %d heads of %d, f32\n", backward ? "backward" : "forward", int{length}, int{heads},
                    int{size});
        std::printf("%-42s %10s %10s %10s %16s\n", "pattern", "ms", "blocks", "time", "time per block");
        for (std::size_t n = 0; n < bodies.size(); ++n) {
            const double share = visited_share(heed::patterns::parse(patterns[n]), length, heads);
            const double time = seconds[n] / seconds[0];
            std::printf("%-42s %10.2f %9.1f%% %9.1f%% %15.2fx\n", patterns[n], seconds[n] * 1e3, 100 * share,
                        100 * time, time / share);
        }
    }
}

void products(Context& context) {
    struct Case {
        long rows, columns, depth;
        bool transposed;
    };
    const double peak = heed::bench::peak_gflops(DType::f32, context.threads(), 0.2);
    std::printf("f32, %d threads, peak %.0f GFLOP/s; oneDNN %s\n", context.threads(), peak,
                heed::bench::onednn_version());
    std::printf("%-28s %12s %12s %10s %10s\n", "M x N x K", "heed GFLOP/s", "oneDNN", "ratio", "of peak");
    for (const Case& c : {Case{1024, 1024, 1024, false}, Case{1024, 1024, 1024, true}, Case{2048, 128, 512, true},
                          Case{128, 512, 2048, false}, Case{64, 512, 128, false}, Case{20, 64, 64, false},
                          Case{4, 4096, 4096, true}, Case{1, 4096, 4096, false}, Case{1, 4096, 4096, true}}) {
        const Tensor a = filled({c.rows, c.depth}, 1), b = filled({c.depth, c.columns}, 2);
        Tensor ours(DType::f32, {c.rows, c.columns}), theirs(DType::f32, {c.rows, c.columns});
        const View right = c.transposed ? View(b.as<float>(), {c.depth, c.columns}, {1, c.depth}) : b.view();
        const double operations = 2.0 * static_cast<double>(c.rows * c.columns) * static_cast<double>(c.depth);
        const int repeats = std::max(1, static_cast<int>(2e8 / operations));
        const std::vector<double> seconds = interleaved(
            {[&] {
                 for (int n = 0; n < repeats; ++n) { heed::matmul(context, a, right, ours); }
             },
             [&] {
                 for (int n = 0; n < repeats; ++n) {
                     heed::bench::matmul(heed::bench::Transpose::no,
                                         c.transposed ? heed::bench::Transpose::yes : heed::bench::Transpose::no,
                                         c.rows, c.columns, c.depth, 1, a.as<float>(), c.depth, b.as<float>(),
                                         c.transposed ? c.depth : c.columns, 0, theirs.as<float>(), c.columns);
                 }
             }});
        const double rate = operations * repeats / seconds[0] * 1e-9;
        std::printf("%5ld x %5ld x %5ld %-8s %12.1f %12.1f %9.2fx %9.1f%%\n", c.rows, c.columns, c.depth,
                    c.transposed ? "(b^T)" : "", rate, operations * repeats / seconds[1] * 1e-9,
                    seconds[1] / seconds[0], 100 * rate / peak);
    }
}

void mla(Context& context) {
    constexpr std::int64_t heads = 16, latent = 512, plain = 128, rotary = 64, value = 128;
    const Tensor up_key = filled({heads, plain, latent}, 1), up_value = filled({heads, value, latent}, 2);
    const Tensor q = filled({1, heads, 1, plain + rotary}, 3);
    Tensor out(DType::f32, {1, heads, 1, value});
    std::printf("one query, %d heads, r 512, n 128, p 64, v 128, f32\n%10s %14s %14s %10s\n", int{heads}, "keys",
                "absorbed ms", "expanded ms", "ratio");
    for (const std::int64_t keys : {256, 1024, 4096}) {
        const Tensor cache = filled({1, keys, latent + rotary}, 4);
        const std::vector<double> seconds =
            interleaved({[&] {
                             heed::mla_attend_absorbed(context, q, cache, {up_key, up_value}, out);
                         },
                         [&] {
                             heed::mla_attend(context, q, cache.view().slice(2, 0, latent),
                                              cache.view().slice(2, latent, latent + rotary), {up_key, up_value}, out);
                         }});
        std::printf("%10ld %14.3f %14.3f %9.1fx\n", static_cast<long>(keys), seconds[0] * 1e3, seconds[1] * 1e3,
                    seconds[1] / seconds[0]);
    }
}

}  // namespace

int main(int argc, char** argv) {
    try {
        const std::string command = argc > 1 ? argv[1] : "";
        int threads = 0;
        if (argc == 4 && std::string(argv[2]) == "--threads") {
            threads = std::stoi(argv[3]);
        } else if (argc != 2) {
            throw std::invalid_argument("expected sparse, matmul or mla, then perhaps --threads N");
        }
        Context context(threads);
        if (command == "sparse") {
            sparse(context);
        } else if (command == "matmul") {
            products(context);
        } else if (command == "mla") {
            mla(context);
        } else {
            throw std::invalid_argument("expected sparse, matmul or mla, got '" + command + "'");
        }
    } catch (const std::exception& error) {
        std::fprintf(stderr, "heed_bench_operations: %s\n", error.what());
        return 2;
    }
    return 0;
}
