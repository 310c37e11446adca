#pragma once
#include "kernel/attention_problem.h"

namespace heed::detail {

/// Blocks of queries and keys in which the call's mask shows something to somebody, as a pattern: kernels leave out the
/// tiles of the others. Absent where there is no mask, where it is not for large tables with rows in order on the host,
/// or where too little is hidden to pay for it.
Pattern visible_blocks(const AttentionProblem& problem);

}  // namespace heed::detail
