#pragma once
#include "kernel/kernel.h"
#include "kernel/rotate_problem.h"

namespace heed::reference {

/// Plain loops in double.
void rotate(const RotateProblem& problem);

inline Kernel<RotateProblem> rotate_kernel() {
    return reference_kernel<RotateProblem>([](detail::Place&, const RotateProblem& p) { rotate(p); });
}

/// cosine = factor cos(position frequency), sine likewise, for the pairs of one axis after the other.
void rotary_tables(const RotaryTablesProblem& problem);

inline Kernel<RotaryTablesProblem> rotary_tables_kernel() {
    return reference_kernel<RotaryTablesProblem>(
        [](detail::Place&, const RotaryTablesProblem& p) { rotary_tables(p); });
}

}  // namespace heed::reference
