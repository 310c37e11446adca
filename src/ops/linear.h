#pragma once
#include <heed/view.h>

namespace heed {

/// Rows of tensors [..., N] as matrices with as few axes as their strides allow, the same number for all: the leading
/// axes of both are joined where both lie evenly.
struct MatrixPair {
    View a;
    MutableView b;
};
MatrixPair as_matrices(const View& a, const MutableView& b);

/// A matrix with as many leading axes of 1 as `rank` asks for.
View with_leading_ones(const View& matrix, int rank);
MutableView with_leading_ones(const MutableView& matrix, int rank);

}  // namespace heed
