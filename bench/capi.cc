// The benchmark behind a plain C interface, for bench/native.py: one process then measures heed, the compositions and
// other software in turn, on the same memory. No exception leaves: a failure is NaN, null or -1 and hb_error().
#include <cmath>
#include <exception>
#include <limits>
#include <string>

#include "contestants.h"
#include "matmul.h"

using heed::DType;
using heed::bench::Problem;
using heed::bench::Session;
using heed::bench::Spec;

namespace {

thread_local std::string error;
thread_local std::string answer;

template <class Result, class Call>
Result guarded(Result failure, const Call& call) {
    try {
        error.clear();
        return call();
    } catch (const std::exception& problem) { error = problem.what(); } catch (...) {
        error = "unknown exception";
    }
    return failure;
}

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

heed::Tensor* buffer_of(Problem& problem, const std::string& name, int copy) {
    if (name == "q") { return &problem.q; }
    if (name == "k") { return &problem.k.at(static_cast<std::size_t>(copy)); }
    if (name == "v") { return &problem.v.at(static_cast<std::size_t>(copy)); }
    if (name == "out") { return &problem.out; }
    if (name == "dout") { return &problem.dout; }
    if (name == "dq") { return &problem.dq; }
    if (name == "dk") { return &problem.dk; }
    if (name == "dv") { return &problem.dv; }
    if (name == "bias") { return &problem.bias; }
    if (name == "slopes") { return &problem.slopes; }
    throw std::invalid_argument("no buffer " + name);
}

}  // namespace

#define HB_API extern "C" __attribute__((visibility("default")))

HB_API const char* hb_error() { return error.c_str(); }
HB_API const char* hb_isa() { return heed::bench::name_of(heed::bench::machine_isa()).data(); }
HB_API const char* hb_onednn_version() { return heed::bench::onednn_version(); }
HB_API int hb_has_bf16_dot() { return heed::bench::has_bf16_dot() ? 1 : 0; }
HB_API double hb_last_level_cache() { return static_cast<double>(heed::bench::last_level_cache()); }

HB_API double hb_peak_gflops(int dtype, int threads, double seconds) {
    return guarded(not_a_number, [&] { return heed::bench::peak_gflops(static_cast<DType>(dtype), threads, seconds); });
}
HB_API double hb_exp_rate(int threads, double seconds) {
    return guarded(not_a_number, [&] { return heed::bench::exp_rate(threads, seconds); });
}
/// GB/s; the session's later "read" contestants use the loop found here where the threads are the session's.
HB_API double hb_read_bandwidth(Session* session, int threads) {
    return guarded(not_a_number, [&] {
        const heed::bench::ReadBandwidth best = heed::bench::best_read_bandwidth(threads);
        if (threads == session->threads()) { session->read_loop = best.loop; }
        return best.gigabytes_per_second;
    });
}

HB_API Session* hb_open(int threads) {
    return guarded<Session*>(nullptr, [&] { return new Session(threads); });
}
HB_API void hb_close(Session* session) { delete session; }

HB_API Problem* hb_problem_new(const Spec* spec) {
    return guarded<Problem*>(nullptr, [&] { return new Problem(*spec); });
}
HB_API void hb_problem_free(Problem* problem) { delete problem; }

/// Where a buffer lies, and its size; null where this problem has none of that name.
HB_API void* hb_buffer(Problem* problem, const char* name, int copy, double* bytes) {
    return guarded<void*>(nullptr, [&]() -> void* {
        heed::Tensor* tensor = buffer_of(*problem, name, copy);
        *bytes = *tensor ? static_cast<double>(tensor->bytes()) : 0;
        return tensor->data();
    });
}

/// Empty: it can; else why not.
HB_API const char* hb_declines(const char* contestant, const Spec* spec) {
    return guarded<const char*>("failed", [&] {
        answer = heed::bench::declines(contestant, *spec);
        return answer.c_str();
    });
}
/// Name of the kernel that heed takes.
HB_API const char* hb_kernel(Problem* problem) {
    return guarded<const char*>("", [&] {
        const Spec& s = problem->spec();
        answer =
            heed::explain({s.batch, s.heads, s.kv_heads, s.queries, s.keys, s.head_size, s.head_size, problem->dtype()},
                          problem->options())
                .kernel;
        return answer.c_str();
    });
}
HB_API double hb_run(Session* session, Problem* problem, const char* contestant, double iterations) {
    return guarded(not_a_number,
                   [&] { return heed::bench::timed(*session, *problem, contestant, std::lround(iterations)); });
}
/// Leaves heed's out and lse in the problem, which the backward pass and hb_backward_error read.
HB_API int hb_forward(Session* session, Problem* problem) {
    return guarded(-1, [&] {
        heed::bench::forward(*session, *problem);
        return 0;
    });
}
/// Of results laid out as the problem's own, in its type.
HB_API double hb_forward_error(Problem* problem, const void* out) {
    return guarded(not_a_number, [&] {
        return heed::bench::forward_error(*problem, heed::View(problem->dtype(), out, problem->out.shape()));
    });
}
HB_API double hb_backward_error(Problem* problem, const void* dq, const void* dk, const void* dv) {
    return guarded(not_a_number, [&] {
        const DType dtype = problem->dtype();
        return heed::bench::backward_error(*problem, heed::View(dtype, dq, problem->dq.shape()),
                                           heed::View(dtype, dk, problem->dk.shape()),
                                           heed::View(dtype, dv, problem->dv.shape()));
    });
}
