#pragma once
#include "kernel/packed_problem.h"

namespace heed::reference {

/// The weight at (output, input) in the layout of kernel/packed_problem.h.
float packed_number(const PackedProblem& problem, std::int64_t output, std::int64_t input);

/// Lays out outputs [begin, end), of which those behind the last are 0.
void pack_weights(const PackWeightsProblem& problem, std::int64_t begin, std::int64_t end);

/// Plain loops: the meaning of linear with packed weights, rows [begin, end).
void packed_linear(const PackedProblem& problem, std::int64_t begin, std::int64_t end);

}  // namespace heed::reference
