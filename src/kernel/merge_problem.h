#pragma once
#include <heed/merge.h>

namespace heed {

/// A checked call: every shape agrees. Kernels trust it.
struct MergeProblem {
    std::span<const PartialResult> parts;
    std::int64_t rows = 0;
    std::int64_t size = 0;  ///< E

    MutableView out, lse;  // forward

    View dout, dlse;  // backward
    std::span<const PartialGradient> gradients;
};

/// Offset of row n, counted row-major over the first `axes` axes.
template <class AnyView>
std::int64_t row_offset(const AnyView& view, int axes, std::int64_t n) {
    std::int64_t offset = 0;
    for (int axis = axes - 1; axis >= 0; --axis) {
        offset += n % view.extent(axis) * view.stride(axis);
        n /= view.extent(axis);
    }
    return offset;
}

}  // namespace heed
