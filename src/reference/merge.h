#pragma once
#include "kernel/merge_problem.h"

#include <vector>

namespace heed::reference {

/// Plain loops, double sums: the meaning of <heed/merge.h>. Rows [begin, end).
void merge(const MergeProblem& problem, std::int64_t begin, std::int64_t end);
void merge_backward(const MergeProblem& problem, std::int64_t begin, std::int64_t end);

/// The weights w_n of one row, what every implementation shares; 0 for parts that saw no key.
struct MergeWeights {
    std::vector<double> weight;  ///< [N]
    std::vector<char> seen;      ///< [N]: the part saw a key
    double lse = 0;

    void compute(const MergeProblem& problem, std::int64_t row);
};

}  // namespace heed::reference
