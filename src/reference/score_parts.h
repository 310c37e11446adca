#pragma once
#include <heed/inspect.h>

#include "kernel/attention_problem.h"

namespace heed::reference {

/// Steps 1 to 5 of <heed/attention.h> at one place, each number apart. The problem is not packed.
ScoreParts score_parts(const AttentionProblem& problem, const ScorePlace& place, const ScorePartsOptions& wanted);

}  // namespace heed::reference
