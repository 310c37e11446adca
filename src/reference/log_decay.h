#pragma once
#include "kernel/log_decay_problem.h"

namespace heed::reference {

/// Rows begin up to end.
void log_decay(const LogDecayProblem& p, std::int64_t begin, std::int64_t end);
void log_decay_backward(const LogDecayProblem& p, std::int64_t begin, std::int64_t end);
/// drate of one state, from x and dout.
void log_decay_rate_backward(const LogDecayProblem& p, std::int64_t state);

}  // namespace heed::reference
