#include "ops/row_sums.h"

#include "cpu/row_sums/row_sums.h"
#include "cuda/composition.h"
#include "ops/host_copy.h"
#include "reference/row_sums.h"

#include <span>

namespace heed {
namespace {

/// For explain(): the operations that are made of these. Kernels take every problem made here, so no error names them.
constexpr const char* of_mla = "mla_attend";
constexpr const char* of_infini = "infini_attend";

// Where a device has one row alone there is nothing to force: each has a list of its own.

/// With axes of 1 behind its own.
template <class AnyView>
AnyView with_four_axes(const AnyView& x) {
    std::int64_t extents[4] = {1, 1, 1, 1}, strides[4] = {1, 1, 1, 1};
    for (int axis = 0; axis < x.rank(); ++axis) {
        extents[axis] = x.extent(axis);
        strides[axis] = x.stride(axis);
    }
    return AnyView(x.dtype(), x.data(), Shape(std::span<const std::int64_t>(extents)),
                   Shape(std::span<const std::int64_t>(strides)), x.device());
}

}  // namespace

void copy_or_sum(Context& context, const View& from, const MutableView& to) {
    static const auto list = kernel_list<HeadSumProblem>(
        {cuda::head_sum_kernels(), cpu::head_sum_kernels(), {reference::head_sum_kernel()}});
    if (to.shape().elements() == 0) { return; }
    run_forward(context, std::span<const Kernel<HeadSumProblem>>(list), {of_mla}, {from, to});
}

void weighted_sum(Context& context, const MutableView& out, const std::vector<double>& fa, const View& a,
                  const std::vector<double>& fb, const View& b) {
    static const std::vector<Kernel<WeightedSumProblem>> here = {cpu::weighted_sum_kernel()},
                                                         there = cuda::weighted_sum_kernels();
    run_forward(context, std::span(on_host(context) ? here : there), {of_infini}, {out, fa, a, fb, b});
}

void accumulate(Context& context, const MutableView& to, const View& x) {
    const MutableView sums = with_four_axes(to);
    weighted_sum(context, sums, {}, sums, {}, with_four_axes(x));
}

void store(Context& context, const View& x, const MutableView& to) {
    weighted_sum(context, with_four_axes(to), {}, with_four_axes(x), {}, {});
}

void add_dot_difference(Context& context, const View& d, const View& a, const View& b, std::vector<double>& sum) {
    static const std::vector<Kernel<HeadDotProblem>> here = {cpu::head_dot_kernel()}, there = cuda::head_dot_kernels();
    run_forward(context, std::span(on_host(context) ? here : there), {of_infini}, {d, a, b, sum});
}

}  // namespace heed
