#include "reference/row_sums.h"

#include "reference/rows.h"

namespace heed::reference {

Kernel<HeadSumProblem> head_sum_kernel() {
    return reference_kernel<HeadSumProblem>([](detail::Place& place, const HeadSumProblem& p) {
        const std::int64_t groups = p.to.extent(1);
        const bool large = p.to.shape().elements() * p.summed() > 100000;
        detail::parallel(*place.pool, p.to.extent(0) * groups, large, [&](std::int64_t task, int) {
            const std::int64_t b = task / groups, g = task % groups;
            for (std::int64_t s = 0; s < p.to.extent(2); ++s) {
                Row sum(index(p.to.extent(3)), 0.0);
                for (std::int64_t n = 0; n < p.summed(); ++n) {
                    add(sum, 1, row_of(p.from, b, p.from.extent(1) == 1 ? 0 : g + n, s));
                }
                put_row(p.to, b, g, s, sum);
            }
        });
    });
}

}  // namespace heed::reference
