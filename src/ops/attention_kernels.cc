#include "ops/attention_kernels.h"

#include "cpu/attention/attention.h"
#include "reference/attention.h"

#include <cstdlib>
#include <vector>

namespace heed {
namespace {

void reference_weights(const AttentionProblem& problem, std::int64_t b, std::int64_t h, const std::int64_t* rows,
                       std::int64_t count, std::int64_t stride, double* out) {
    reference::SoftmaxRow row;
    const Sequence s = problem.sequence(b);
    for (std::int64_t r = 0; r < count; ++r) {
        double* target = out + r * stride;
        if (rows[r] >= s.queries) {
            std::fill(target, target + s.keys, 0.0);
            continue;
        }
        row.compute(problem, s, b, h, rows[r]);
        std::copy(row.weight.begin(), row.weight.end(), target);
    }
}

AttentionKernel cpu_kernel(const cpu::InstructionSet& set) {
    return {.name = "cpu-" + std::string(set.name),
            .what = "tiled, " + std::string(set.what),
            .missing = set.missing,
            .declines_problem = cpu::declines,
            .forward = set.kernels->attention.forward,
            .backward = set.kernels->attention.backward,
            .weights = set.kernels->attention.weights,
            .reads_pages = true};
}

AttentionKernel reference_kernel() {
    return {.name = "reference",
            .what = "plain loops with double sums, one thread",
            .missing = "",
            .declines_problem = [](const AttentionProblem&) { return std::string(); },
            .forward = [](detail::Pool&, const AttentionProblem& problem) { reference::attend(problem); },
            .backward = [](detail::Pool&, const AttentionProblem& problem) { reference::attend_backward(problem); },
            .wide_weights = reference_weights};
}

}  // namespace

std::span<const AttentionKernel> attention_kernel_list() {
    static const std::vector<AttentionKernel> list = [] {
        std::vector<AttentionKernel> kernels;
        for (const cpu::InstructionSet& set : cpu::instruction_sets()) { kernels.push_back(cpu_kernel(set)); }
        kernels.push_back(reference_kernel());
        return kernels;
    }();
    return list;
}

const AttentionKernel& choose_attention_kernel(const char* function, const AttentionProblem& problem) {
    const std::span<const AttentionKernel> kernels = attention_kernel_list();
    std::string forced = problem.options.kernel;
    const char* asked_by = "kernel";
    if (forced.empty()) {
        if (const char* variable = std::getenv("HEED_KERNEL"); variable != nullptr && *variable != '\0') {
            forced = variable;
            asked_by = "HEED_KERNEL";
        }
    }
    if (forced.empty()) {
        for (const AttentionKernel& kernel : kernels) {
            if (kernel.declines(problem).empty()) { return kernel; }
        }
        return kernels.back();  // the reference takes everything
    }
    const auto fail = [&](const std::string& expected) {
        throw Error("[" + std::string(function) + "] " + asked_by + ": expected " + expected + ", got " + forced);
    };
    std::string names;
    for (const AttentionKernel& kernel : kernels) {
        names += (names.empty() ? "" : ", ") + kernel.name;
        if (kernel.name != forced) { continue; }
        const std::string reason = kernel.declines(problem);
        if (!reason.empty()) { fail("a kernel that fits (" + forced + " does not: " + reason + ")"); }
        return kernel;
    }
    fail("one of " + names);
    return kernels.back();
}

}  // namespace heed
