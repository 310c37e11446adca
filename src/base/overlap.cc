#include "base/overlap.h"

#include <algorithm>
#include <array>
#include <cstdlib>

namespace heed {
namespace {

struct Range {
    std::int64_t begin;
    std::int64_t end;
};

Range address_range(const View& view) {
    std::int64_t low = 0;
    std::int64_t high = 0;
    for (int axis = 0; axis < view.rank(); ++axis) {
        const std::int64_t reach = (view.extent(axis) - 1) * view.stride(axis);
        (reach < 0 ? low : high) += reach;
    }
    const auto size = static_cast<std::int64_t>(size_of(view.dtype()));
    const auto base = reinterpret_cast<std::intptr_t>(view.data());
    return {base + low * size, base + (high + 1) * size};
}

struct Step {
    std::int64_t stride;
    std::int64_t reach_a;  // largest index along it in the one view
    std::int64_t reach_b;  // and in the other
};
using Steps = std::array<Step, std::size_t{2} * Shape::max_rank>;

/// Is offset = sum of n_k * stride_k for some -reach_b <= n_k <= reach_a? The steps nest, largest stride first.
bool reachable(std::int64_t offset, const Step* step, int count) {
    if (count == 0) { return offset == 0; }
    // What lies below a step is shorter than its stride: only the quotient and its neighbours can do.
    const std::int64_t quotient = offset / step->stride;
    for (std::int64_t n = quotient - 1; n <= quotient + 1; ++n) {
        if (n >= -step->reach_b && n <= step->reach_a && reachable(offset - n * step->stride, step + 1, count - 1)) {
            return true;
        }
    }
    return false;
}

/// The axes of two views as steps, largest stride first; an axis that one of them lacks has no reach there. False where
/// they do not nest (then nothing exact can be said).
bool nested_steps(const View& a, const View& b, Steps& steps, int& count) {
    count = 0;
    const auto add = [&](std::int64_t stride, std::int64_t reach_a, std::int64_t reach_b) {
        for (int k = 0; k < count; ++k) {
            Step& step = steps[static_cast<std::size_t>(k)];
            const bool free = reach_a > 0 ? step.reach_a == 0 : step.reach_b == 0;
            if (step.stride == stride && free) {
                step.reach_a += reach_a;
                step.reach_b += reach_b;
                return;
            }
        }
        steps[static_cast<std::size_t>(count++)] = {stride, reach_a, reach_b};
    };
    for (int axis = 0; axis < a.rank(); ++axis) {
        if (a.extent(axis) > 1) { add(std::abs(a.stride(axis)), a.extent(axis) - 1, 0); }
    }
    for (int axis = 0; axis < b.rank(); ++axis) {
        if (b.extent(axis) > 1) { add(std::abs(b.stride(axis)), 0, b.extent(axis) - 1); }
    }
    std::sort(steps.begin(), steps.begin() + count, [](Step x, Step y) { return x.stride > y.stride; });
    std::int64_t below = 0;
    for (int k = count - 1; k >= 0; --k) {
        const Step& step = steps[static_cast<std::size_t>(k)];
        if (step.stride <= below) { return false; }
        below += step.stride * std::max(step.reach_a, step.reach_b);
    }
    return true;
}

bool is_empty(const View& view) { return !view || view.shape().elements() == 0; }

}  // namespace

bool overlaps(const View& a, const View& b) {
    if (is_empty(a) || is_empty(b)) { return false; }
    const Range range_a = address_range(a);
    const Range range_b = address_range(b);
    if (range_a.end <= range_b.begin || range_b.end <= range_a.begin) { return false; }
    const auto size = static_cast<std::int64_t>(size_of(a.dtype()));
    const std::int64_t bytes = range_b.begin - range_a.begin;
    if (size_of(b.dtype()) != size_of(a.dtype()) || bytes % size != 0) { return true; }
    Steps steps;
    int count = 0;
    return !nested_steps(a, b, steps, count) || reachable(bytes / size, steps.data(), count);
}

bool same_memory(const View& a, const View& b) {
    return a.data() == b.data() && a.dtype() == b.dtype() && a.shape() == b.shape() && a.strides() == b.strides();
}

bool overlaps_itself(const View& view) {
    if (is_empty(view)) { return false; }
    Steps steps;
    int count = 0;
    return !nested_steps(view, {}, steps, count);
}

}  // namespace heed
