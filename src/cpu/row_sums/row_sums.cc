#include "cpu/row_sums/row_sums.h"

#include "base/dispatch.h"
#include "cpu/instruction_sets.h"

#include <type_traits>

namespace heed::cpu {
namespace {

void head_sum(detail::Place& place, const HeadSumProblem& p, const RowFunctions& rows) {
    const View& from = p.from;
    const MutableView& to = p.to;
    const std::int64_t groups = to.extent(1);
    const std::int64_t keys = to.extent(2);
    const std::int64_t size = to.extent(3);
    const std::int64_t summed = p.summed();
    // A copy allocates nothing.
    const float one = 1;
    const std::vector<float> ones(static_cast<std::size_t>(summed > 1 ? summed : 0), 1.0F);
    detail::parallel(
        *place.pool, to.extent(0) * groups, to.shape().elements() * summed > 100000, [&](std::int64_t task, int) {
            const std::int64_t b = task / groups;
            const std::int64_t g = task % groups;
            RowAddress single;
            std::vector<RowAddress> several(static_cast<std::size_t>(summed > 1 ? summed : 0));
            RowAddress* row = summed > 1 ? several.data() : &single;
            for (std::int64_t s = 0; s < keys; ++s) {
                const auto offset = [&](std::int64_t n) {
                    const std::int64_t h = from.extent(1) == 1 ? 0 : g + n;
                    return b * from.stride(0) + h * from.stride(1) + s * from.stride(2);
                };
                const std::int64_t target = b * to.stride(0) + g * to.stride(1) + s * to.stride(2);
                const auto bytes = [](DType dtype, std::int64_t n) {
                    return n * static_cast<std::int64_t>(size_of(dtype));
                };
                for (std::int64_t n = 0; n < summed; ++n) {
                    char* data = static_cast<char*>(const_cast<void*>(from.data())) + bytes(from.dtype(), offset(n));
                    row[n] = {from.dtype(), data, from.stride(3)};
                }
                rows.combine(row, summed > 1 ? ones.data() : &one, summed, size,
                             {to.dtype(), static_cast<char*>(to.data()) + bytes(to.dtype(), target), to.stride(3)});
            }
        });
}

/// A row of any float type: where it starts and how far apart its elements are.
template <class T, class AnyView>
auto* row_at(const AnyView& view, std::int64_t b, std::int64_t h, std::int64_t t) {
    return view.template as<T>() + b * view.stride(0) + h * view.stride(1) + t * view.stride(2);
}

/// Work per element is a few instructions: threads pay off from here.
constexpr std::int64_t elements_worth_waking = 1 << 17;

double factor_of(const std::vector<double>& factors, std::int64_t head) {
    return factors.empty() ? 1 : factors[static_cast<std::size_t>(head)];
}

void weighted_sum(detail::Place& place, const WeightedSumProblem& p) {
    const auto& [out, fa, a, fb, b] = p;
    const std::int64_t heads = out.extent(1);
    const std::int64_t rows = out.extent(2);
    const std::int64_t columns = out.extent(3);
    const auto run = [&]<class Out, class A, class B>(std::int64_t entry, std::int64_t h) {
        using Wide = std::conditional_t<std::is_same_v<Out, double>, double, float>;
        const auto x = static_cast<Wide>(factor_of(fa, h));
        const auto y = static_cast<Wide>(factor_of(fb, h));
        for (std::int64_t t = 0; t < rows; ++t) {
            Out* to = row_at<Out>(out, entry, h, t);
            const A* from = row_at<A>(a, entry, h, t);
            const B* more = b ? row_at<B>(b, entry, h, t) : nullptr;
            for (std::int64_t c = 0; c < columns; ++c) {
                Wide sum = x * static_cast<Wide>(from[c * a.stride(3)]);
                if (more != nullptr) { sum += y * static_cast<Wide>(more[c * b.stride(3)]); }
                to[c * out.stride(3)] = static_cast<Out>(sum);
            }
        }
    };
    const bool wake = out.shape().elements() > elements_worth_waking;
    detail::parallel(*place.pool, out.extent(0) * heads, wake, [&](std::int64_t task, int) {
        dispatch_float(out.dtype(), [&]<class Out>() {
            dispatch_float(a.dtype(), [&]<class A>() {
                dispatch_float(b ? b.dtype() : a.dtype(),
                               [&]<class B>() { run.template operator()<Out, A, B>(task / heads, task % heads); });
            });
        });
    });
}

void head_dot(detail::Place& place, const HeadDotProblem& p) {
    const auto& [d, a, b, sum] = p;
    const auto run = [&]<class D, class A>(std::int64_t h) {
        double total = 0;
        for (std::int64_t entry = 0; entry < d.extent(0); ++entry) {
            for (std::int64_t t = 0; t < d.extent(2); ++t) {
                const D* x = row_at<D>(d, entry, h, t);
                const A* y = row_at<A>(a, entry, h, t);
                const A* less = b ? row_at<A>(b, entry, h, t) : nullptr;
                for (std::int64_t c = 0; c < d.extent(3); ++c) {
                    const double other = less == nullptr ? 0 : static_cast<double>(less[c * b.stride(3)]);
                    total +=
                        static_cast<double>(x[c * d.stride(3)]) * (static_cast<double>(y[c * a.stride(3)]) - other);
                }
            }
        }
        sum[static_cast<std::size_t>(h)] += total;
    };
    const bool wake = d.shape().elements() > elements_worth_waking;
    detail::parallel(*place.pool, d.extent(1), wake, [&](std::int64_t h, int) {
        dispatch_float(d.dtype(), [&]<class D>() {
            dispatch_float(a.dtype(), [&]<class A>() { run.template operator()<D, A>(h); });
        });
    });
}

}  // namespace

std::vector<Kernel<HeadSumProblem>> head_sum_kernels() {
    using Row = Kernel<HeadSumProblem>;
    return rows_of_sets<Row>("rows", []<const Kernels & kernels>(Row& row) {
        row.declines = [](const HeadSumProblem& p) {
            return p.from.dtype() == DType::f64 ? "float64 is for the reference" : nullptr;
        };
        row.forward = [](detail::Place& place, const HeadSumProblem& p) { head_sum(place, p, kernels.rows); };
    });
}

Kernel<WeightedSumProblem> weighted_sum_kernel() {
    return {.name = "cpu", .what = "rows, any CPU", .forward = weighted_sum};
}

Kernel<HeadDotProblem> head_dot_kernel() {
    return {.name = "cpu", .what = "rows with double sums, any CPU", .forward = head_dot};
}

}  // namespace heed::cpu
