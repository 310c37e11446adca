#pragma once
/// What is measured, by name, behind one call, so that bench/run and heed_bench treat all of it alike.

#include <string>
#include <string_view>

#include <heed/context.h>

#include "limits.h"
#include "problem.h"

namespace heed::bench {

/// The threads that everything in one run gets.
class Session {
public:
    explicit Session(int threads) : threads_(threads), context_(threads) {}
    int threads() const { return threads_; }
    Context& context() { return context_; }
    ReadLoop read_loop;  ///< the fastest, once best_read_bandwidth has been asked

private:
    int threads_;
    Context context_;
};

/// Why `contestant` (heed, naive, blocked, read) does not do this case; empty: it does.
std::string declines(std::string_view contestant, const Spec& spec);

/// Seconds for `iterations` ("heed-new": heed forward, into new memory each time) of the problem's pass (backward where
/// its spec says so); k and v are used in turn.
double timed(Session& session, Problem& problem, std::string_view contestant, long iterations);

/// problem.out and problem.lse from heed, as the backward pass needs them.
void forward(Session& session, Problem& problem);

}  // namespace heed::bench
