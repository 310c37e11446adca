#include "kernel/merge_problem.h"

#include "kernel/merge_rule.h"

#include <cmath>
#include <limits>

namespace heed {

void MergeWeights::compute(const MergeProblem& p, std::int64_t row) {
    constexpr double infinite = std::numeric_limits<double>::infinity();
    weight.assign(p.parts.size(), 0);
    seen.assign(p.parts.size(), 0);
    double largest = -infinite;
    for (std::size_t n = 0; n < p.parts.size(); ++n) {
        const View& lses = p.parts[n].lse;
        weight[n] = read_number(lses.dtype(), lses.data(), row_offset(lses, lses.rank(), row));
        seen[n] = weight[n] != -infinite ? 1 : 0;
        largest = merged_logarithm(largest, weight[n]);
    }
    lse = largest;
    if (largest == -infinite) {
        weight.assign(p.parts.size(), 0);
        return;
    }
    double sum = 0;
    for (double& w : weight) {
        w = merge_weight(w, largest, [](double x) { return std::exp(x); });
        sum += w;
    }
    for (double& w : weight) { w /= sum; }
    lse = largest + std::log(sum);
}

}  // namespace heed
