#include "contestants.h"

#include <chrono>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "compositions.h"

namespace heed::bench {
namespace {

template <class Call>
double seconds_of(long iterations, const Problem& problem, const Call& call) {
    const auto start = std::chrono::steady_clock::now();
    for (long n = 0; n < iterations; ++n) { call(static_cast<int>(n % problem.spec().copies)); }
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::span<const std::byte> bytes_of(const Tensor& tensor) {
    return {static_cast<const std::byte*>(tensor.data()), tensor.bytes()};
}

/// The floor of decoding: every byte of k and v read once per call and nothing done with it.
double read_time(Session& session, const Problem& problem, long iterations) {
    std::vector<std::span<const std::byte>> spans;
    for (long n = 0; n < iterations; ++n) {
        const auto copy = static_cast<std::size_t>(n % problem.spec().copies);
        spans.push_back(bytes_of(problem.k[copy]));
        spans.push_back(bytes_of(problem.v[copy]));
    }
    return read_seconds(spans, session.threads(), 1, session.read_loop);
}

/// The same call as heed_time's, its result in new memory every time.
double heed_new_time(Session& session, const Problem& problem, long iterations) {
    return seconds_of(iterations, problem, [&](int copy) {
        const auto at = static_cast<std::size_t>(copy);
        Tensor out = Tensor::uninitialised(problem.out.dtype(), problem.out.shape());
        attend(session.context(), problem.q.view(), problem.k[at].view(), problem.v[at].view(), out.view(),
               problem.options());
    });
}

double heed_time(Session& session, Problem& problem, long iterations) {
    const View q = std::as_const(problem.q).view();
    if (problem.spec().backward == 0) {
        return seconds_of(iterations, problem, [&](int copy) {
            const auto at = static_cast<std::size_t>(copy);
            attend(session.context(), q, std::as_const(problem.k[at]).view(), std::as_const(problem.v[at]).view(),
                   problem.out.view(), problem.options());
        });
    }
    AttentionGradients gradients;
    gradients.dq = problem.dq.view();
    gradients.dk = problem.dk.view();
    gradients.dv = problem.dv.view();
    const View k = std::as_const(problem.k[0]).view();
    const View v = std::as_const(problem.v[0]).view();
    return seconds_of(iterations, problem, [&](int) {
        attend_backward(session.context(),
                        {.q = q,
                         .k = k,
                         .v = v,
                         .out = std::as_const(problem.out).view(),
                         .lse = std::as_const(problem.lse).view(),
                         .dout = std::as_const(problem.dout).view()},
                        gradients, problem.options());
    });
}

}  // namespace

std::string declines(std::string_view contestant, const Spec& spec) {
    if (contestant == "heed" || contestant == "read") { return ""; }
    if (contestant == "naive") { return naive_declines(spec); }
    if (contestant == "blocked") { return blocked_declines(spec); }
    return "no such contestant";
}

double timed(Session& session, Problem& problem, std::string_view contestant, long iterations) {
    if (contestant == "heed") { return heed_time(session, problem, iterations); }
    if (contestant == "heed-new") { return heed_new_time(session, problem, iterations); }
    if (contestant == "read") { return read_time(session, problem, iterations); }
    const bool backward = problem.spec().backward != 0;
    if (contestant == "naive" && !backward) {
        return seconds_of(iterations, problem, [&](int copy) { naive_forward(problem, copy, session.threads()); });
    }
    if (contestant == "blocked") {
        return seconds_of(iterations, problem, [&](int copy) {
            backward ? blocked_backward(problem, session.threads()) : blocked_forward(problem, copy, session.threads());
        });
    }
    throw std::invalid_argument("no contestant " + std::string(contestant) + " for this pass");
}

void forward(Session& session, Problem& problem) {
    attend(session.context(), std::as_const(problem.q).view(), std::as_const(problem.k[0]).view(),
           std::as_const(problem.v[0]).view(), {.out = problem.out.view(), .lse = problem.lse.view()},
           problem.options());
}

}  // namespace heed::bench
