// heed_bench_long [PART ...] [--threads N] [--rounds N] [--quick]: each line of output is a row of a table, as JSON.
// bench/run prints the tables; docs/benchmarks.md says what is measured.
#include "long.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <stdexcept>

namespace heed::bench {
namespace {

constexpr double shortest = 4e-3;  // seconds of one timing, by repetition where a call is shorter

double seconds_of(const std::function<void()>& body, long repeats) {
    const auto begin = std::chrono::steady_clock::now();
    for (long n = 0; n < repeats; ++n) { body(); }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    return took.count() / static_cast<double>(repeats);
}

/// What names and sections may contain: nothing that JSON would want escaped.
std::string checked(const std::string& text) {
    if (text.find_first_of("\"\\") != std::string::npos) { throw std::invalid_argument("a quote in " + text); }
    return text;
}

}  // namespace

void print(const LongRow& row) {
    std::string figures;
    for (const auto& [name, value] : row.figures) {
        char number[64] = "null";
        if (std::isfinite(value)) { std::snprintf(number, sizeof(number), "%.6g", value); }
        figures += (figures.empty() ? "\"" : ", \"") + checked(name) + "\": " + number;
    }
    std::printf(R"({"section": "%s", "case": "%s", "figures": {%s}, "bar": "%s", "met": %s})"
                "\n",
                checked(row.section).c_str(), checked(row.name).c_str(), figures.c_str(), checked(row.bar).c_str(),
                row.met ? "true" : "false");
    std::fflush(stdout);
}

LongRow with_bar(LongRow row, const std::string& name, double value, double bar, bool at_most) {
    char number[32];
    std::snprintf(number, sizeof(number), "%g", bar);
    row.bar = name + (at_most ? " <= " : " >= ") + number;
    row.met = at_most ? value <= bar : value >= bar;
    return row;
}

std::vector<std::vector<double>> interleaved(const LongSettings& settings,
                                             const std::vector<std::function<void()>>& bodies) {
    std::vector<long> repeats;
    for (const std::function<void()>& body : bodies) {
        body();
        repeats.push_back(std::max(1L, std::lround(shortest / seconds_of(body, 1))));
    }
    std::vector<std::vector<double>> seconds(bodies.size());
    for (int round = 0; round < settings.rounds; ++round) {
        for (std::size_t n = 0; n < bodies.size(); ++n) {
            const std::size_t at = (n + static_cast<std::size_t>(round)) % bodies.size();
            seconds[at].push_back(seconds_of(bodies[at], repeats[at]));
        }
    }
    return seconds;
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    const std::size_t half = values.size() / 2;
    return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double ratio(const std::vector<double>& a, const std::vector<double>& b) {
    std::vector<double> ratios;
    for (std::size_t n = 0; n < a.size(); ++n) { ratios.push_back(a[n] / b[n]); }
    return median(ratios);
}

}  // namespace heed::bench

int main(int argc, char** argv) {
    using namespace heed::bench;
    const std::pair<const char*, void (*)(heed::Context&, const LongSettings&)> parts[] = {
        {"length", linear_against_length},
        {"peak", linear_against_peak},
        {"gated", gated_against_length},
        {"rope", rope_against_memory},
        {"sparse", sparse_against_blocks},
        {"infini", infini_against_length},
        {"mla", mla_decoding}};
    try {
        LongSettings settings;
        std::vector<std::string> asked;
        for (int n = 1; n < argc; ++n) {
            const std::string argument = argv[n];
            const auto number = [&] {
                if (++n == argc) { throw std::invalid_argument(argument + " needs a number"); }
                return std::max(1, std::stoi(argv[n]));
            };
            if (argument == "--quick") {
                settings.quick = true;
            } else if (argument == "--threads") {
                settings.threads = number();
            } else if (argument == "--rounds") {
                settings.rounds = number();
            } else {
                asked.push_back(argument);
            }
        }
        for (const std::string& name : asked) {
            const auto known = [&](const auto& part) { return name == part.first; };
            if (std::none_of(std::begin(parts), std::end(parts), known)) {
                throw std::invalid_argument("expected length, peak, rope, sparse, infini or mla, got '" + name + "'");
            }
        }
        heed::Context context(settings.threads);
        for (const auto& [name, run] : parts) {
            if (asked.empty() || std::find(asked.begin(), asked.end(), name) != asked.end()) { run(context, settings); }
        }
    } catch (const std::exception& error) {
        std::fprintf(stderr, "heed_bench_long: %s\n", error.what());
        return 2;
    }
    return 0;
}
