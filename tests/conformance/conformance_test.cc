/// Every case of the table on every kernel that fits this machine.
///
/// A kernel joins by being in heed::attention_kernels(): there is nothing to add here. A failure prints the case in one
/// line; `conformance --case N` runs it alone.

#include <gtest/gtest.h>

#include "conformance/run.h"
#include "conformance/tolerance.h"
#include "support/sample.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace heed::conformance {
namespace {

double largest(const std::vector<double>& values) {
    double top = 0;
    for (const double value : values) {
        if (std::isfinite(value)) { top = std::max(top, std::abs(value)); }
    }
    return top;
}

/// The largest difference from what is expected. NaN differs from everything except an expected NaN, and infinity from
/// everything but itself: then the result is infinite, and `where` says which.
double difference(const std::vector<double>& got, const std::vector<double>& expected, std::size_t& where) {
    double worst = 0;
    where = 0;
    for (std::size_t n = 0; n < expected.size(); ++n) {
        if (std::isnan(expected[n]) && std::isnan(got[n])) { continue; }
        if (got[n] == expected[n]) { continue; }
        const double gap = std::abs(got[n] - expected[n]);
        const double error = std::isfinite(gap) ? gap : std::numeric_limits<double>::infinity();
        if (error > worst) {
            worst = error;
            where = n;
        }
    }
    return worst;
}

bool any_nan(const std::vector<double>& values) {
    for (const double value : values) {
        if (std::isnan(value)) { return true; }
    }
    return false;
}

/// Where the yardstick itself overflows or is NaN it measures nothing.
double finite_or_zero(double x) { return std::isfinite(x) ? x : 0; }

std::string number(double x) {
    char text[32];
    std::snprintf(text, sizeof(text), "%.9g", x);
    return text;
}

/// Over the bits of all results (FNV-1a).
void add_bits(const Results& results, std::uint64_t& hash) {
    for (int n = 0; n < Results::count; ++n) {
        for (const double value : results[n]) {
            hash = (hash ^ (std::isnan(value) ? 1 : std::bit_cast<std::uint64_t>(value))) * 0x100000001b3ULL;
        }
    }
}

/// The worst of error / bound seen for each result, printed at the end so that a tolerance's slack is known.
struct Worst {
    double ratio[Results::count] = {};
    int in_case[Results::count] = {};
};

std::string compare(const Problem& p, const Results& got, const Results& expected, const Naive& exact,
                    const Results& yardstick, Worst& worst) {
    const Tolerance t = tolerance_of(p.dtype);
    for (int n = 0; n < (forward_only() ? 2 : Results::count); ++n) {
        if (got[n].size() != expected[n].size()) { return std::string(Results::names[n]) + " has the wrong size"; }
        std::size_t where = 0;
        const double error = difference(got[n], expected[n], where);
        std::size_t elsewhere = 0;
        const double naive = finite_or_zero(difference(yardstick[n], expected[n], elsewhere));
        const bool is_lse = n == 1;  // never stored in less than float32
        const Tolerance stored = is_lse ? tolerance_of(DType::f32) : t;
        const double rounding =
            largest(exact.magnitude[n]) * (stored.storage_units * stored.storage_epsilon +
                                           stored.score_units * 0x1p-24 * (1 + exact.largest_score)) +
            stored.tiny;
        const double bound = t.naive_factor * naive + rounding;
        if (error / bound > worst.ratio[n]) {
            worst.ratio[n] = error / bound;
            worst.in_case[n] = p.c.number;
        }
        if (!(error <= bound)) {
            return std::string(Results::names[n]) + "[" + std::to_string(where) + "] is " + number(got[n][where]) +
                   ", expected " + number(expected[n][where]) + ": off by " + number(error) + ", allowed " +
                   number(bound) + " (naive method " + number(naive) + ", rounding " + number(rounding) + ")";
        }
    }
    return {};
}

/// The reference in double and the naive method in double must agree about everything, NaN included.
std::string second_opinion(const Problem& p, const Results& reference, const Naive& naive) {
    for (int n = 0; n < Results::count; ++n) {
        if (!p.may_hold_nan() && any_nan(reference[n])) { return std::string(Results::names[n]) + " holds NaN"; }
        std::size_t where = 0;
        const double error = difference(reference[n], naive.results[n], where);
        const double bound = oracle_units * largest(naive.magnitude[n]) * (1 + naive.largest_score);
        if (!(error <= bound)) {
            return std::string(Results::names[n]) + "[" + std::to_string(where) + "] is " +
                   number(reference[n][where]) + ", the naive method says " + number(naive.results[n][where]);
        }
    }
    return {};
}

constexpr int failures_to_print = 20;

TEST(Conformance, TableIsLargeAndCoversEveryPair) {
    const std::vector<Case>& cases = all_cases();
    const Coverage coverage = pair_coverage(cases);
    std::printf("%zu cases, %lld of %lld pairs of option values\n", cases.size(),
                static_cast<long long>(coverage.covered), static_cast<long long>(coverage.pairs));
    EXPECT_GE(cases.size(), 2000U);
    EXPECT_EQ(coverage.covered, coverage.pairs);
}

void change(Case& c, Axis axis, std::string_view value) {
    const auto& values = info(axis).values;
    const auto found = std::find(values.begin(), values.end(), value);
    c.choice[static_cast<std::size_t>(axis)] = static_cast<int>(found - values.begin());
}

/// The same case within what the kernels for Hopper take: 16-bit tensors of their head sizes, and bands and lengths
/// alone where `bands` are asked for.
Case for_hopper(Case c, bool bands) {
    const auto set = [&](Axis axis, std::string_view value) { change(c, axis, value); };
    if (bands) {
        for (const Axis axis : {Axis::allow, Axis::pattern, Axis::bias, Axis::alibi, Axis::sinks, Axis::positions}) {
            set(axis, "none");
        }
        if (c[Axis::dropout].starts_with("keep")) { set(Axis::dropout, "none"); }
        set(Axis::softcap, "0");
        if (c[Axis::scale] == "-0.2" || c[Axis::scale] == "0") { set(Axis::scale, "0.3"); }
        if (c.number % 5 == 0) { set(Axis::queries, "1"); }
    }
    const char* size = c.number % 2 == 0 ? "64" : "128";
    set(Axis::head_size, size);
    set(Axis::value_size, size);
    if (c[Axis::dtype] == "f32") { set(Axis::dtype, "bf16"); }
    if (c[Axis::layout] != "BTHD") { set(Axis::layout, "BHTD"); }
    return c;
}

TEST(Conformance, HopperOnTheGpu) {
    const std::vector<std::string> kernels = kernels_to_test(true);
    if (kernels.empty()) { GTEST_SKIP() << "no GPU, or heed built without CUDA"; }
    Context context(2);
    for (const std::string kernel : {"cuda-sm90", "cuda-sm90/decode", "cuda-sm90/general"}) {
        const bool bands = kernel != "cuda-sm90/general";
        Worst worst;
        int ran = 0;
        int failed = 0;
        for (const Case& original : cases_to_test(bands ? 2 : 1)) {
            const Case c = for_hopper(original, bands);
            const Problem problem(c);
            const auto outputs = run(context, problem, kernel);
            if (outputs == nullptr) { continue; }
            ++ran;
            const Results expected = oracle(context, problem);
            std::string wrong = compare(problem, outputs->results(), expected, naive_double(problem),
                                        naive_float(problem).results, worst);
            if (const char* name = outputs->written_around()) { wrong = std::string(name) + ": written around"; }
            if (!wrong.empty() && ++failed <= failures_to_print) {
                ADD_FAILURE() << kernel << ": " << wrong << "\n  " << c.describe();
            }
        }
        std::printf("%s: %d cases, %d failed; largest error as a part of what is allowed:", kernel.c_str(), ran,
                    failed);
        for (int r = 0; r < 5; ++r) { std::printf(" %s %.2f", Results::names[r], worst.ratio[r]); }
        std::printf("\n");
        EXPECT_EQ(failed, 0);
        EXPECT_GT(ran, 0);
    }
}

/// The same case as a short plain head: no option that changes scores.
Case as_short(Case c) {
    const auto set = [&](Axis axis, std::string_view value) { change(c, axis, value); };
    for (const Axis axis : {Axis::window, Axis::allow, Axis::pattern, Axis::bias, Axis::alibi, Axis::sinks,
                            Axis::positions, Axis::dropout}) {
        set(axis, "none");
    }
    set(Axis::softcap, "0");
    set(Axis::causal, "no");
    set(Axis::dtype, "f32");
    if (c[Axis::lengths].starts_with("packed")) { set(Axis::lengths, "both"); }
    if (c[Axis::scale] == "-0.2" || c[Axis::scale] == "0") { set(Axis::scale, "0.3"); }
    if (c[Axis::layout] != "BTHD") { set(Axis::layout, "BHTD"); }
    constexpr const char* rows[] = {"16", "17", "31", "33", "64"};
    constexpr const char* columns[] = {"16", "64", "80", "128"};
    set(Axis::queries, rows[c.number % 5]);
    set(Axis::keys, rows[c.number / 5 % 5]);
    set(Axis::value_size, columns[c.number % 4]);
    return c;
}

/// The table's pairs of options leave next to nothing for the kernel of short plain heads.
TEST(Conformance, ShortHeads) {
    Context context(2);
    for (const std::string& kernel : kernels_to_test()) {
        if (!kernel.ends_with("/short")) { continue; }
        Worst worst;
        int ran = 0;
        for (const Case& original : cases_to_test(16)) {
            const Case c = as_short(original);
            const Problem problem(c);
            if (!fits(problem, kernel)) { continue; }
            ++ran;
            const Results expected = oracle(context, problem);
            const Naive exact = naive_double(problem);
            const Results yardstick = naive_float(problem).results;
            for (const std::string& each : {kernel, kernel.substr(0, kernel.find('/')) + "/tiles"}) {
                const auto outputs = run(context, problem, each);
                EXPECT_EQ(compare(problem, outputs->results(), expected, exact, yardstick, worst), "")
                    << each << "\n  " << c.describe();
                EXPECT_EQ(outputs->written_around(), nullptr) << each << "\n  " << c.describe();
            }
        }
        std::printf("%s: %d cases\n", kernel.c_str(), ran);
        EXPECT_GT(ran, 0);
    }
}

TEST(Conformance, EveryKernelEveryCase) {
    Context context(2);
    std::vector<std::string> kernels = kernels_to_test();
    for (const std::string& kernel : kernels_to_test(true)) {
        if (kernel == "cuda-any") { kernels.push_back(kernel); }  // the others: HopperOnTheGpu
    }
    ASSERT_FALSE(kernels.empty()) << "HEED_CONFORMANCE_KERNELS names no kernel that runs on this machine";
    std::vector<Worst> worst(kernels.size());
    std::vector<int> ran(kernels.size(), 0);
    std::vector<int> failed(kernels.size() + 1, 0);
    const auto report = [&](std::size_t kernel, const std::string& name, const Case& c, const std::string& problem) {
        if (problem.empty()) { return; }
        if (++failed[kernel] <= failures_to_print) {
            ADD_FAILURE() << name << ": " << problem << "\n  " << c.describe();
        }
    };
    for (const Case& c : cases_to_test()) {
        const Problem problem(c);
        const Results expected = oracle(context, problem);
        const Naive exact = naive_double(problem);
        report(kernels.size(), "reference in double", c, second_opinion(problem, expected, exact));
        const Naive yardstick = naive_float(problem);
        const Fitting fit(problem);
        for (std::size_t n = 0; n < kernels.size(); ++n) {
            if (!fit(kernels[n])) { continue; }
            const auto outputs = run(context, problem, kernels[n]);
            if (outputs == nullptr) { continue; }
            ++ran[n];
            const Results results = outputs->results();
            report(n, kernels[n], c, compare(problem, results, expected, exact, yardstick.results, worst[n]));
            if (const char* name = outputs->written_around()) {
                report(n, kernels[n], c, std::string(name) + ": something around it was written to");
            }
        }
    }
    for (std::size_t n = 0; n < kernels.size(); ++n) {
        std::printf("%s: %d cases, %d failed; largest error as a part of what is allowed:", kernels[n].c_str(), ran[n],
                    failed[n]);
        for (int r = 0; r < Results::count; ++r) {
            std::printf(" %s %.2f (case %d)", Results::names[r], worst[n].ratio[r], worst[n].in_case[r]);
        }
        std::printf("\n");
        EXPECT_EQ(failed[n], 0) << kernels[n];
        // A part of the table may have nothing for a kernel of some problems only; all of it nothing for short heads.
        const bool some = kernels[n].ends_with("/short") || testing::test_stride() > 1;
        EXPECT_TRUE(ran[n] > 0 || some) << kernels[n] << " took no case at all";
    }
    EXPECT_EQ(failed.back(), 0) << "reference in double against the naive method";
}

/// For who changes kernels and means to change no bit: prints a hash of everything that each computes, to be compared
/// with that of another build on the same machine.
TEST(Conformance, Bits) {
    if (std::getenv("HEED_CONFORMANCE_BITS") == nullptr) { GTEST_SKIP() << "HEED_CONFORMANCE_BITS is not set"; }
    Context context(2);
    for (const std::string& kernel : kernels_to_test()) {
        if (kernel.find('/') != std::string::npos) { continue; }  // its family computes the same
        std::uint64_t hash = 0xcbf29ce484222325ULL;
        int ran = 0;
        for (const Case& c : cases_to_test()) {
            const Problem problem(c);
            const Fitting fit(problem);
            if (!fit(kernel) && !fit(kernel + "/decode") && !fit(kernel + "/short")) { continue; }
            add_bits(run(context, problem, kernel)->results(), hash);
            ++ran;
        }
        std::printf("%s: bits of %d cases %016llx\n", kernel.c_str(), ran, static_cast<unsigned long long>(hash));
    }
}

}  // namespace
}  // namespace heed::conformance
