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
    std::int64_t reach;  // largest difference of indices along it
};

/// Is offset = sum of n_k * stride_k for some |n_k| <= reach_k? Steps are sorted, largest stride first.
bool reachable(std::int64_t offset, const Step* step, int count) {
    if (count == 0) { return offset == 0; }
    std::int64_t rest = 0;
    for (int k = 0; k < count; ++k) { rest += step[k].reach * step[k].stride; }
    if (std::abs(offset) > rest) { return false; }
    const std::int64_t quotient = offset / step->stride;
    for (std::int64_t n = quotient - 1; n <= quotient + 1; ++n) {
        if (std::abs(n) <= step->reach && reachable(offset - n * step->stride, step + 1, count - 1)) { return true; }
    }
    return false;
}

/// Axes as steps, largest stride first; false where they do not nest (then nothing exact can be said).
bool nested_steps(const View& view, std::array<Step, Shape::max_rank>& steps, int& count) {
    count = 0;
    for (int axis = 0; axis < view.rank(); ++axis) {
        if (view.extent(axis) > 1) {
            steps[static_cast<std::size_t>(count++)] = {std::abs(view.stride(axis)), view.extent(axis) - 1};
        }
    }
    std::sort(steps.begin(), steps.begin() + count, [](Step a, Step b) { return a.stride > b.stride; });
    std::int64_t below = 0;
    for (int k = count - 1; k >= 0; --k) {
        const Step& step = steps[static_cast<std::size_t>(k)];
        if (step.stride <= below) { return false; }
        below += step.stride * step.reach;
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
    std::array<Step, Shape::max_rank> steps_a;
    std::array<Step, Shape::max_rank> steps_b;
    int count_a = 0;
    int count_b = 0;
    if (!nested_steps(a, steps_a, count_a) || !nested_steps(b, steps_b, count_b) || count_a != count_b) { return true; }
    for (int k = 0; k < count_a; ++k) {
        Step& step = steps_a[static_cast<std::size_t>(k)];
        const Step& other = steps_b[static_cast<std::size_t>(k)];
        if (step.stride != other.stride) { return true; }
        step.reach = std::max(step.reach, other.reach);
    }
    return reachable(bytes / size, steps_a.data(), count_a);
}

bool overlaps_itself(const View& view) {
    if (is_empty(view)) { return false; }
    std::array<Step, Shape::max_rank> steps;
    int count = 0;
    return !nested_steps(view, steps, count);
}

}  // namespace heed
