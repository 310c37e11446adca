#pragma once
#include <heed/context.h>
#include <heed/linear.h>
#include <heed/view.h>

#include "kernel/linear_problem.h"

#include <functional>

namespace heed {

/// What a product does to its result besides.
struct ProductOptions {
    bool accumulate = false;  ///< c is added to
    View bias{};
    Activation activation = Activation::none;
    MutableView before_activation{};
};

/// Matrices [..., M, N] as [..., N, M].
View transposed(const View& matrices);

/// c [..., M, N] = activation(a [..., M, K] b [..., K, N] (+ c) + bias), of checked arguments: the way to multiply for
/// operations that have looked at their arguments themselves.
void product(Context& context, const View& a, const View& b, const MutableView& c, const ProductOptions& options = {});

/// The problem of a linear layer without its weights (product.b and columns), once where the rows of all tensors lie
/// evenly, otherwise once for each matrix of the leading axes.
void for_matrices(const View& x, const MutableView& out, const LinearOptions& options,
                  const std::function<void(const LinearProblem&)>& run);

/// Rows and columns of weights in a form of their own.
struct PreparedShape {
    std::int64_t outputs, inputs;
};

/// linear with such weights: checks the arguments, then for_matrices with the columns filled in.
void for_prepared(const char* function, const View& x, const MutableView& out, const LinearOptions& options,
                  const PreparedShape& weight, const std::function<void(const LinearProblem&)>& run);

}  // namespace heed
