#pragma once
/// The seam: what a kernel is to the rest of heed, for every operation and every device.
///
/// An operation is a checked Problem (kernel/NAME_problem.h), and an ordered list of rows that can carry it out, best
/// first, the reference last. To give it one (take layer norm):
///
///     // src/ops/norm.cc
///     std::span<const Kernel<NormProblem>> norm_kernels() {                    // made once, in order
///         static const auto list = kernel_list<NormProblem>({cpu::norm_kernels(), {reference::norm_kernel}});
///         return list;
///     }
///     void norm(Context& context, ...) {
///         const NormProblem problem = checked("norm", ...);                    // throws Error, or can be trusted
///         run_forward(context, norm_kernels(), {"norm"}, problem);             // chooses, locks, runs
///     }
///
///     // src/reference/norm.h: a row that runs anywhere and takes everything
///     inline const Kernel<NormProblem> norm_kernel = reference_kernel<NormProblem>(norm, norm_backward);
///
///     // src/cpu/norm/norm.cc: a row for each instruction set; `kernels` is its table (cpu/isa/tables.h)
///     std::vector<Kernel<NormProblem>> norm_kernels() {
///         return rows_of_sets<NormProblem>([]<const Kernels& kernels>(Kernel<NormProblem>& row) {
///             row.declines = [](const NormProblem& p) { return p.wide() ? "double is the reference's" : nullptr; };
///             row.forward = [](detail::Place& place, const NormProblem& p) { kernels.norm.forward(*place.pool, p); };
///         });
///     }
///
/// Nothing else decides who computes: explain(), HEED_KERNEL, Context::set_kernel and the tests read the same list.

#include <heed/context.h>
#include <heed/explain.h>

#include "base/place.h"

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace heed {

enum class Pass : std::uint8_t { forward, backward };

/// One row. All text about declining is static, because every call walks past the kernels that do not fit.
template <class P>
struct Kernel {
    using Problem = P;

    /// "reference", "cpu-avx2"; a kernel for some problems only: "cpu-avx2/decode".
    std::string name{};
    std::string what{};  ///< for explain()
    DeviceKind device = DeviceKind::cpu;
    const char* missing = nullptr;  ///< what this machine lacks to run it; null: nothing
    /// Why the kernel cannot take the problem; null where it can. No function: it takes all.
    const char* (*declines)(const Problem& problem) = nullptr;
    /// The place's lock is held, the arguments are trusted.
    void (*forward)(detail::Place& place, const Problem& problem) = nullptr;
    void (*backward)(detail::Place& place, const Problem& problem) = nullptr;
};

/// Who asks for a kernel, and for what.
struct Asking {
    const char* function;       ///< the public one, for errors
    std::string_view kernel{};  ///< forced by the caller's options; empty: by the context, or nobody
    Pass pass = Pass::forward;
};

namespace detail {

/// A kernel forced by name, and who forced it: "kernel" (the options), "Context::set_kernel" or "HEED_KERNEL".
struct Forced {
    std::string_view name{};
    const char* by = "";
};
inline Forced forced(const Place& place, const Asking& asking) {
    if (!asking.kernel.empty()) { return {asking.kernel, "kernel"}; }
    return {place.kernel, place.kernel_forced_by};
}

/// Does the row carry the forced name: the very one, or that of its family ("cpu-avx2" is also "cpu-avx2/decode")?
inline bool carries(std::string_view row, std::string_view forced_name) {
    return row.starts_with(forced_name) && (row.size() == forced_name.size() || row[forced_name.size()] == '/');
}

/// The name by which a list knows a forced kernel: itself, or its family where the operation has no such row.
template <class Row>
std::string_view known_as(std::string_view forced_name, std::span<const Row> kernels) {
    const auto known = [&](std::string_view name) {
        for (const Row& row : kernels) {
            if (carries(row.name, name)) { return true; }
        }
        return false;
    };
    const std::string_view family = forced_name.substr(0, forced_name.find('/'));
    return known(forced_name) || !known(family) ? forced_name : family;
}

/// Why the row cannot run this on that device; null where it can.
template <class Row>
const char* declined(const Row& row, DeviceKind device, Pass pass, const typename Row::Problem& problem) {
    if (row.device != device) {
        return row.device == DeviceKind::cpu ? "works on memory of the CPU" : "works on memory of a GPU";
    }
    if (row.missing != nullptr) { return row.missing; }
    if ((pass == Pass::forward ? row.forward : row.backward) == nullptr) { return "has no such pass"; }
    return row.declines == nullptr ? nullptr : row.declines(problem);
}

struct Verdict {
    std::string_view name;
    std::string_view what;
    const char* declined = nullptr;
};
/// Throws: nobody takes the problem, or nobody who carries the name that was forced.
[[noreturn]] void refuse_kernels(const Asking& asking, const Forced& forced, std::string_view name,
                                 std::span<const Verdict> verdicts);
Explanation explanation_of(const Asking& asking, std::string_view chosen, std::span<const Verdict> verdicts);

template <class Row>
std::vector<Verdict> verdicts_of(std::span<const Row> kernels, DeviceKind device, Pass pass,
                                 const typename Row::Problem& problem) {
    std::vector<Verdict> verdicts;
    for (const Row& row : kernels) { verdicts.push_back({row.name, row.what, declined(row, device, pass, problem)}); }
    return verdicts;
}

}  // namespace detail

/// The one place where it is decided who computes: the first row that takes the problem, or that and carries the forced
/// name. Throws Error, naming asking.function, where there is none: it says why each declined.
template <class Row>
const Row& choose(std::span<const Row> kernels, const detail::Place& place, const Asking& asking,
                  const typename Row::Problem& problem) {
    detail::Forced forced = detail::forced(place, asking);
    if (kernels.size() == 1 && asking.kernel.empty()) { forced = {}; }  // nothing to choose from
    const std::string_view name = forced.name.empty() ? forced.name : detail::known_as(forced.name, kernels);
    for (const Row& row : kernels) {
        if (!name.empty() && !detail::carries(row.name, name)) { continue; }
        if (detail::declined(row, place.device.kind, asking.pass, problem) == nullptr) { return row; }
    }
    detail::refuse_kernels(asking, forced, name, detail::verdicts_of(kernels, place.device.kind, asking.pass, problem));
}

/// What choose() would say, with the reasons of all.
template <class Row>
Explanation explain_kernels(std::span<const Row> kernels, const detail::Place& place, const Asking& asking,
                            const typename Row::Problem& problem) {
    return detail::explanation_of(asking, choose(kernels, place, asking, problem).name,
                                  detail::verdicts_of(kernels, place.device.kind, asking.pass, problem));
}

template <class Row>
std::vector<std::string> names_of(std::span<const Row> kernels) {
    std::vector<std::string> names;
    for (const Row& row : kernels) { names.push_back(row.name); }
    return names;
}

/// True where the context only wants to know who would run; then that is noted, and the caller is done.
template <class Row>
bool only_explains(detail::Place& place, std::span<const Row> kernels, const Asking& asking,
                   const typename Row::Problem& problem) {
    if (place.explained == nullptr) { return false; }
    place.explained->push_back(explain_kernels(kernels, place, asking, problem));
    return true;
}

template <class Row>
void run_forward(const Context& context, std::span<const Row> kernels, const Asking& asking,
                 const typename Row::Problem& problem) {
    detail::Place& place = detail::place_of(context);
    if (only_explains(place, kernels, asking, problem)) { return; }
    const Row& kernel = choose(kernels, place, asking, problem);
    const auto lock = place.pool->lock();
    kernel.forward(place, problem);
}

template <class Row>
void run_backward(const Context& context, std::span<const Row> kernels, Asking asking,
                  const typename Row::Problem& problem) {
    asking.pass = Pass::backward;
    detail::Place& place = detail::place_of(context);
    if (only_explains(place, kernels, asking, problem)) { return; }
    const Row& kernel = choose(kernels, place, asking, problem);
    const auto lock = place.pool->lock();
    kernel.backward(place, problem);
}

/// Rows of several sources in one list, in the order given.
template <class Problem>
std::vector<Kernel<Problem>> kernel_list(std::initializer_list<std::vector<Kernel<Problem>>> sources) {
    std::vector<Kernel<Problem>> list;
    for (const auto& rows : sources) { list.insert(list.end(), rows.begin(), rows.end()); }
    return list;
}

/// The last row of every list.
template <class Problem>
Kernel<Problem> reference_kernel(void (*forward)(detail::Place& place, const Problem& problem),
                                 void (*backward)(detail::Place& place, const Problem& problem) = nullptr) {
    return {.name = "reference", .what = "plain loops with double sums", .forward = forward, .backward = backward};
}

}  // namespace heed
