// heed_bench_operations matmul [--threads N]: the matrix product against oneDNN and the peak, in the same rounds.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include <heed/matmul.h>
#include <heed/tensor.h>

#include "limits.h"
#include "matmul.h"
#include "rounds.h"

namespace {

using heed::Context;
using heed::DType;
using heed::Tensor;
using heed::View;
using heed::bench::best_of;
using heed::bench::random_tensor;

constexpr int rounds = 7;

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
        const Tensor a = random_tensor({c.rows, c.depth}, 1), b = random_tensor({c.depth, c.columns}, 2);
        Tensor ours(DType::f32, {c.rows, c.columns}), theirs(DType::f32, {c.rows, c.columns});
        const View right = c.transposed ? View(b.as<float>(), {c.depth, c.columns}, {1, c.depth}) : b.view();
        const double operations = 2.0 * static_cast<double>(c.rows * c.columns) * static_cast<double>(c.depth);
        const int repeats = std::max(1, static_cast<int>(2e8 / operations));
        const std::vector<double> seconds =
            best_of(rounds, {[&] {
                                 for (int n = 0; n < repeats; ++n) { heed::matmul(context, a, right, ours); }
                             },
                             [&] {
                                 for (int n = 0; n < repeats; ++n) {
                                     heed::bench::matmul(
                                         heed::bench::Transpose::no,
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

}  // namespace

int main(int argc, char** argv) {
    try {
        int threads = 0;
        if (argc == 4 && std::string(argv[2]) == "--threads") {
            threads = std::stoi(argv[3]);
        } else if (argc != 2) {
            throw std::invalid_argument("expected matmul, then perhaps --threads N");
        }
        if (const std::string command = argv[1]; command != "matmul") {
            throw std::invalid_argument("expected matmul, got '" + command + "'");
        }
        Context context(threads);
        products(context);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "heed_bench_operations: %s\n", error.what());
        return 2;
    }
    return 0;
}
