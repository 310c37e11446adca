#pragma once
#include <heed/dtype.h>

#include <cstdint>

namespace heed {

/// A matrix inside a tensor. Strides in elements.
struct MatrixAddress {
    DType dtype = DType::f32;
    char* data = nullptr;
    std::int64_t row_stride = 0;
    std::int64_t column_stride = 0;
};

/// A checked product: c [M,N] = alpha * sum over `summed` of a [M,K] b [K,N] + beta * c, once for each of `outer`.
/// Plain data, because kernels of every instruction set read it.
struct MatmulProblem {
    /// Axes that all three walk together; a stride of 0 repeats.
    struct Axes {
        int count = 0;
        std::int64_t extent[6] = {};
        std::int64_t a[6] = {}, b[6] = {}, c[6] = {};
        std::int64_t elements = 1;
    };

    std::int64_t rows = 0, columns = 0, depth = 0;  ///< M, N, K
    MatrixAddress a, b, c;
    Axes outer, summed;
    double alpha = 1, beta = 0;
};

/// Where entry n of some axes lies: offsets in elements.
struct MatmulOffsets {
    std::int64_t a = 0, b = 0, c = 0;
};
inline __attribute__((always_inline)) MatmulOffsets offsets_of(const MatmulProblem::Axes& axes, std::int64_t n) {
    MatmulOffsets at;
    for (int axis = axes.count - 1; axis >= 0; --axis) {
        const std::int64_t index = n % axes.extent[axis];
        n /= axes.extent[axis];
        at.a += index * axes.a[axis];
        at.b += index * axes.b[axis];
        at.c += index * axes.c[axis];
    }
    return at;
}

}  // namespace heed
