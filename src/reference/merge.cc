#include "reference/merge.h"

#include "reference/rows.h"

#include <cmath>

namespace heed::reference {
namespace {

/// Element e of row n of [...,E].
double at(const View& x, std::int64_t n, std::int64_t e) {
    const int last = x.rank() - 1;
    return read_number(x.dtype(), x.data(), row_offset(x, last, n) + e * x.stride(last));
}
void put(const MutableView& x, std::int64_t n, std::int64_t e, double value) {
    const int last = x.rank() - 1;
    write_number(x.dtype(), x.data(), row_offset(x, last, n) + e * x.stride(last), value);
}
/// Element n of [...].
double at(const View& x, std::int64_t n) { return read_number(x.dtype(), x.data(), row_offset(x, x.rank(), n)); }
void put(const MutableView& x, std::int64_t n, double value) {
    write_number(x.dtype(), x.data(), row_offset(x, x.rank(), n), value);
}

}  // namespace

void merge(const MergeProblem& p, std::int64_t begin, std::int64_t end) {
    MergeWeights w;
    std::vector<double> out(static_cast<std::size_t>(p.size));
    for (std::int64_t row = begin; row < end; ++row) {
        w.compute(p, row);
        // From -0 rather than 0, which would turn a lone part's -0 into 0.
        out.assign(out.size(), -0.0);
        bool any = false;
        for (std::size_t n = 0; n < p.parts.size(); ++n) {
            if (w.seen[n] == 0) { continue; }
            any = true;
            for (std::int64_t e = 0; e < p.size; ++e) {
                out[static_cast<std::size_t>(e)] += w.weight[n] * at(p.parts[n].out, row, e);
            }
        }
        for (std::int64_t e = 0; e < p.size; ++e) { put(p.out, row, e, any ? out[static_cast<std::size_t>(e)] : 0); }
        if (p.lse) { put(p.lse, row, w.lse); }
    }
}

void merge_backward(const MergeProblem& p, std::int64_t begin, std::int64_t end) {
    MergeWeights w;
    std::vector<double> along(p.parts.size());  // dout . o_n
    for (std::int64_t row = begin; row < end; ++row) {
        w.compute(p, row);
        const double dlse = p.dlse ? at(p.dlse, row) : 0;
        double mean = 0;  // dout . out
        for (std::size_t n = 0; n < p.parts.size(); ++n) {
            along[n] = 0;
            if (w.seen[n] == 0) { continue; }
            for (std::int64_t e = 0; e < p.size; ++e) { along[n] += at(p.dout, row, e) * at(p.parts[n].out, row, e); }
            mean += w.weight[n] * along[n];
        }
        for (std::size_t n = 0; n < p.parts.size(); ++n) {
            const PartialGradient& gradient = p.gradients[n];
            const bool seen = w.seen[n] != 0;
            // out = sum_n w_n o_n
            for (std::int64_t e = 0; gradient.dout && e < p.size; ++e) {
                put(gradient.dout, row, e, seen ? w.weight[n] * at(p.dout, row, e) : 0);
            }
            // w_n = exp(lse_n - lse), lse = log(sum_n exp(lse_n))
            if (gradient.dlse) { put(gradient.dlse, row, seen ? w.weight[n] * (dlse + along[n] - mean) : 0); }
        }
    }
}

Kernel<MergeProblem> merge_kernel() {
    return reference_kernel<MergeProblem>(
        [](detail::Place& place, const MergeProblem& p) { for_all_rows(*place.pool, p, merge); },
        [](detail::Place& place, const MergeProblem& p) { for_all_rows(*place.pool, p, merge_backward); });
}

}  // namespace heed::reference
