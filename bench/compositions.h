#pragma once
/// Attention put together from matrix products, as one does without a library for it. These are the yardsticks
/// "naive" and "blocked" of the benchmark.

#include "problem.h"

namespace heed::bench {

/// Why a composition does not do this case; empty: it does.
const char* naive_declines(const Spec& spec);
const char* blocked_declines(const Spec& spec);

/// S = Q K^T, P = softmax(S), O = P V with the whole T x S matrix of a head in memory. Threads over heads.
void naive_forward(const Problem& problem, int copy, int threads);

/// The same in blocks of queries and keys with the online softmax, over oneDNN (sgemm, or its bf16 product): masked
/// blocks are skipped, the query heads of a group are stacked where they fit one block. Threads over heads.
void blocked_forward(const Problem& problem, int copy, int threads);
/// Needs out and lse of the forward pass.
void blocked_backward(const Problem& problem, int threads);

}  // namespace heed::bench
