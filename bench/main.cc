// heed_bench: the C++ side of the benchmark by itself, for a shell or a profiler. bench/run is the whole of it.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "contestants.h"

namespace {

using heed::DType;
using heed::bench::Problem;
using heed::bench::Session;
using heed::bench::Spec;

constexpr const char* usage =
    R"(heed_bench: limits of this machine, and attention against them

  heed_bench limits [--threads N]
  heed_bench case B,H,G,T,S,D [--dtype f32|bf16|f16] [--causal] [--backward] [--window N] [--padding N]
                  [--dropout P] [--softcap C] [--bias] [--alibi] [--software heed,naive,blocked,read]
                  [--rounds N] [--threads N]
  heed_bench memory B,H,G,T,S,D [--dtype ...] [--backward] ...      peak memory above inputs and outputs

  heed_bench case 1,12,12,1024,1024,64 --causal --backward
)";

constexpr const char* dtype_names[] = {"f32", "bf16", "f16"};

struct Arguments {
    std::string command;
    Spec spec;
    int threads = static_cast<int>(std::thread::hardware_concurrency());
    int rounds = 7;
    std::vector<std::string> software{"heed", "naive", "blocked"};
};

std::vector<std::string> split(const std::string& text) {
    std::vector<std::string> parts;
    std::istringstream stream(text);
    for (std::string part; std::getline(stream, part, ',');) { parts.push_back(part); }
    return parts;
}

Arguments parse(int argc, char** argv) {
    if (argc < 2) { throw std::invalid_argument("a command is needed: limits, case or memory"); }
    Arguments result;
    result.command = argv[1];
    int at = 2;
    if (result.command == "case" || result.command == "memory") {
        const std::vector<std::string> shape = split(at < argc ? argv[at++] : "");
        if (shape.size() != 6) { throw std::invalid_argument("the shape is six numbers: B,H,G,T,S,D"); }
        Spec& spec = result.spec;
        std::int64_t* fields[] = {&spec.batch, &spec.heads, &spec.kv_heads, &spec.queries, &spec.keys, &spec.head_size};
        for (std::size_t n = 0; n < 6; ++n) { *fields[n] = std::stol(shape[n]); }
        if (std::any_of(std::begin(fields), std::end(fields), [](const std::int64_t* field) { return *field < 1; }) ||
            spec.heads % spec.kv_heads != 0) {
            throw std::invalid_argument("the shape needs positive numbers, and H a multiple of G");
        }
    } else if (result.command != "limits") {
        throw std::invalid_argument("no command " + result.command);
    }
    while (at < argc) {
        const std::string option = argv[at++];
        const auto value = [&] {
            if (at == argc) { throw std::invalid_argument(option + " needs a value"); }
            return std::string(argv[at++]);
        };
        if (option == "--threads") {
            result.threads = std::max(1, std::stoi(value()));
        } else if (option == "--rounds") {
            result.rounds = std::max(1, std::stoi(value()));
        } else if (option == "--software") {
            result.software = split(value());
        } else if (option == "--causal") {
            result.spec.causal = 1;
        } else if (option == "--backward") {
            result.spec.backward = 1;
        } else if (option == "--bias") {
            result.spec.bias = static_cast<std::int32_t>(heed::bench::BiasKind::per_head);
        } else if (option == "--alibi") {
            result.spec.alibi = 1;
        } else if (option == "--softcap") {
            result.spec.softcap = std::stod(value());
        } else if (option == "--dropout") {
            result.spec.dropout = std::stod(value());
        } else if (option == "--padding") {
            result.spec.key_length = std::stol(value());
        } else if (option == "--window") {
            result.spec.window_left = std::stol(value()) - 1;
            result.spec.window_right = 0;
        } else if (option == "--dtype") {
            const std::string name = value();
            const auto* found = std::find(std::begin(dtype_names), std::end(dtype_names), name);
            if (found == std::end(dtype_names)) { throw std::invalid_argument("--dtype is f32, bf16 or f16"); }
            result.spec.dtype = static_cast<std::int32_t>(found - std::begin(dtype_names));
        } else {
            throw std::invalid_argument("no option " + option);
        }
    }
    return result;
}

void print_limits(int threads) {
    std::printf("instruction set %s, last-level cache %zu MiB\n",
                std::string(name_of(heed::bench::machine_isa())).c_str(), heed::bench::last_level_cache() >> 20);
    std::vector<int> teams{1};
    if (threads > 1) { teams.push_back(threads); }
    for (const int team : teams) {
        std::printf("%d thread%s\n", team, team == 1 ? "" : "s");
        std::printf("  f32 FMA   %8.1f GFLOP/s\n", heed::bench::peak_gflops(DType::f32, team, 0.2));
        if (heed::bench::has_bf16_dot()) {
            std::printf("  bf16 dot  %8.1f GFLOP/s\n", heed::bench::peak_gflops(DType::bf16, team, 0.2));
        }
        std::printf("  exp       %8.2f G/s\n", heed::bench::exp_rate(team, 0.2));
        const heed::bench::ReadBandwidth read = heed::bench::best_read_bandwidth(team);
        std::printf("  DRAM read %8.1f GB/s (%d stream%s%s)\n", read.gigabytes_per_second, read.loop.streams,
                    read.loop.streams == 1 ? "" : "s", read.loop.prefetch ? ", prefetch" : "");
    }
}

double visible_pairs(const Problem& problem) {
    const Spec& spec = problem.spec();
    double pairs = 0;
    for (std::int64_t i = 0; i < spec.queries; ++i) {
        for (std::int64_t j = 0; j < spec.keys; ++j) { pairs += problem.visible(i, j) ? 1 : 0; }
    }
    return pairs;
}

void run_case(const Arguments& arguments) {
    const Spec& spec = arguments.spec;
    Session session(arguments.threads);
    Problem problem(spec);
    if (spec.backward != 0) { heed::bench::forward(session, problem); }
    const double flops = 4.0 * static_cast<double>(spec.batch * spec.heads * spec.head_size) * visible_pairs(problem) *
                         (spec.backward != 0 ? 2.5 : 1.0);
    const double peak = heed::bench::peak_gflops(problem.dtype(), arguments.threads, 0.1);
    std::printf("%-10s %12s %12s %12s %10s %8s\n", "software", "median ms", "min", "max", "GFLOP/s", "of peak");
    for (const std::string& name : arguments.software) {
        if (const std::string reason = heed::bench::declines(name, spec); !reason.empty()) {
            std::printf("%-10s %s\n", name.c_str(), reason.c_str());
            continue;
        }
        const double first = heed::bench::timed(session, problem, name, 1);
        const long iterations = std::clamp(static_cast<long>(0.03 / first), 1L, 100000L);
        std::vector<double> times;
        for (int round = 0; round < arguments.rounds; ++round) {
            times.push_back(heed::bench::timed(session, problem, name, iterations) / static_cast<double>(iterations));
        }
        std::sort(times.begin(), times.end());
        const double median = times[times.size() / 2];
        const double rate = flops / median * 1e-9;
        std::printf("%-10s %12.4f %12.4f %12.4f %10.1f %7.1f%%\n", name.c_str(), median * 1e3, times.front() * 1e3,
                    times.back() * 1e3, rate, 100 * rate / peak);
    }
}

/// kB of a field of /proc/self/status.
long memory_field(const std::string& name) {
    std::ifstream file("/proc/self/status");
    for (std::string line; std::getline(file, line);) {
        if (line.rfind(name + ":", 0) == 0) { return std::stol(line.substr(name.size() + 1)); }
    }
    throw std::runtime_error("/proc/self/status has no " + name);
}

void run_memory(const Arguments& arguments) {
    Session session(arguments.threads);
    Problem problem(arguments.spec);
    // From here on the highest mark is of the passes alone.
    std::ofstream("/proc/self/clear_refs") << 5 << std::flush;
    const long before = memory_field("VmRSS");
    heed::bench::forward(session, problem);
    if (arguments.spec.backward != 0) { heed::bench::timed(session, problem, "heed", 1); }
    const long peak = memory_field("VmHWM");
    std::printf("inputs and outputs %.1f MB, peak above them %.1f MB, workspace kept %.1f MB\n",
                static_cast<double>(before) * 1.024e-3, static_cast<double>(peak - before) * 1.024e-3,
                static_cast<double>(session.context().workspace_bytes()) * 1e-6);
}

}  // namespace

int main(int argc, char** argv) {
    try {
        const Arguments arguments = parse(argc, argv);
        if (arguments.command == "limits") { print_limits(arguments.threads); }
        if (arguments.command == "case") { run_case(arguments); }
        if (arguments.command == "memory") { run_memory(arguments); }
    } catch (const std::exception& error) {
        std::fprintf(stderr, "heed_bench: %s\n%s", error.what(), argc < 2 ? usage : "");
        return 2;
    }
    return 0;
}
