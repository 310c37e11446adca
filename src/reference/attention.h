#pragma once
#include "kernel/attention_kernel.h"

#include <heed/inspect.h>

#include <vector>

namespace heed::reference {

/// Plain loops, double sums, in the order of <heed/attention.h>: the meaning of attention in heed.
void attend(const AttentionProblem& problem);
void attend_backward(const AttentionProblem& problem);

/// Steps 1 to 3 for one query and key.
struct Score {
    double dot = 0;     ///< before the scale
    double scaled = 0;  ///< 1
    double capped = 0;  ///< 2
    double biased = 0;  ///< 3
};
Score score_of(const AttentionProblem& problem, const Sequence& s, std::int64_t b, std::int64_t h, std::int64_t i,
               std::int64_t j);

/// Step 4, with the lengths and a bias of -infinity.
bool sees(const AttentionProblem& problem, const Sequence& s, std::int64_t b, std::int64_t h, std::int64_t i,
          std::int64_t j);

/// Steps 1 to 5 for one row.
struct SoftmaxRow {
    std::vector<double> weight;    ///< [S], 0 where hidden
    std::vector<double> uncapped;  ///< [S], step 1: the soft-cap's derivative needs it
    std::vector<char> visible;     ///< [S]
    double lse = 0;
    double sink_weight = 0;

    void compute(const AttentionProblem& problem, const Sequence& s, std::int64_t b, std::int64_t h, std::int64_t i);
};

/// What step 6 multiplies a weight by: 1/(1-p), 0 where it is dropped, 1 where there is no dropout.
double dropout_factor(const AttentionProblem& problem, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j);

/// Steps 6 and 7 for one row: [E].
std::vector<double> mixed_values(const AttentionProblem& problem, const Sequence& s, std::int64_t b, std::int64_t h,
                                 std::int64_t i, const SoftmaxRow& row);

/// Steps 1 to `stage` (not weights) for one row: scores [S], whole where i is below the length of the queries.
void score_row(const AttentionProblem& problem, const Sequence& s, std::int64_t b, std::int64_t h, std::int64_t i,
               ScoreStage stage, std::vector<double>& scores);

/// The last row of attention's list.
AttentionKernel attention_kernel();

}  // namespace heed::reference
