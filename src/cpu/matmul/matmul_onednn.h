#pragma once
#include "base/pool.h"
#include "cpu/isa/tables.h"
#include "kernel/matmul_problem.h"

namespace heed::cpu {

/// The first rows and columns of c that are complete; what lies right of them and below is left to others.
struct MatmulDone {
    std::int64_t rows = 0;
    std::int64_t columns = 0;
};

/// Why oneDNN is of no use for the problem; null where it computes some of it.
const char* declines_onednn(const MatmulProblem& problem);

/// Computes whole blocks of c with oneDNN where that is present, faster than heed's own tiles, and gives the very bits
/// of `own`: each kind of call is compared with `own` once in a process and never used where they differ. So whoever
/// computes an element, it is the same number. The pool's lock is held by the caller.
MatmulDone matmul_onednn(detail::Pool& pool, const MatmulProblem& problem, const Kernels& own);

}  // namespace heed::cpu
