#pragma once
#include "kernel/attention_kernel.h"

#include <heed/inspect.h>

#include <vector>

namespace heed::reference {

/// Plain loops, double sums, in the order of <heed/attention.h>: the meaning of attention in heed.
void attend(const AttentionProblem& problem);
void attend_backward(const AttentionProblem& problem);

/// Steps 1 to 5 for one row: what the forward and backward passes, and whoever looks inside, share.
struct SoftmaxRow {
    std::vector<double> weight;    ///< [S], 0 where hidden
    std::vector<double> uncapped;  ///< [S], step 1: the soft-cap's derivative needs it
    std::vector<char> visible;     ///< [S]
    double lse = 0;
    double sink_weight = 0;

    void compute(const AttentionProblem& problem, const Sequence& s, std::int64_t b, std::int64_t h, std::int64_t i);
};

/// Steps 1 to `stage` (not weights) for one row: scores [S], whole where i is below the length of the queries.
void score_row(const AttentionProblem& problem, const Sequence& s, std::int64_t b, std::int64_t h, std::int64_t i,
               ScoreStage stage, std::vector<double>& scores);

/// The last row of attention's list.
AttentionKernel attention_kernel();

}  // namespace heed::reference
