#pragma once
/// The matrix product, for what surrounds attention: projections, up-projections of latents, their gradients.
///
///     heed::matmul(context, x, weight.permute({1, 0}), y);                     // y = x W^T
///     heed::matmul(context, dy.permute({1, 0}), x, dweight, {.beta = 1});      // dW += dy^T x

#include <heed/context.h>
#include <heed/dtype.h>
#include <heed/error.h>
#include <heed/view.h>

namespace heed {

struct MatmulOptions {
    double alpha = 1;
    double beta = 0;  ///< 0: what is in c is not read
};

/// c [...,M,N] = alpha * a [...,M,K] b [...,K,N] + beta * c
///
/// All have the same number of axes, 2 to 8. A leading axis of a or b that is 1 where the others are longer is
/// repeated; one that is 1 in c alone is summed over: a [B,H,S,N] with b [1,H,N,R] into c [B,1,S,R] adds up the heads.
/// Any strides, so a transposed operand is a permuted view. Each of f32, bf16, f16, f64, mixed as you like.
///
/// Sums are float32 (double where anything is f64). Each element is added up in an order that depends on K alone, so
/// neither the number of threads nor the other rows and columns change a bit of it. An output overlapping an input is
/// refused.
HEED_API void matmul(Context& context, const View& a, const View& b, const MutableView& c,
                     const MatmulOptions& options = {});

}  // namespace heed
