#pragma once
/// Linear layers: a matrix product with a weight stored as PyTorch stores it, [outputs, inputs], bias and activation.
///
///     heed::linear(context, x, weight, out, {.bias = bias, .activation = heed::Activation::gelu});
///
/// K inputs, N outputs; x and out may have any number of leading axes, all those of x also in out.

#include <heed/activation.h>
#include <heed/context.h>
#include <heed/error.h>
#include <heed/view.h>

namespace heed {

struct LinearOptions {
    View bias{};  ///< [N]
    Activation activation = Activation::none;
    /// Shape of out: what the activation was given, which linear_backward needs where there is one.
    MutableView before_activation{};
};

/// out [...,N] = activation(x [...,K] weight^T + bias), weight [N,K].
///
/// Each tensor is f32, bf16, f16 or f64, mixed as you like; sums are float32 (double where anything is f64). Each
/// element is added up in an order that depends on K alone: neither threads nor the other rows change a bit of it.
/// Outputs may not overlap inputs.
HEED_API void linear(Context& context, const View& x, const View& weight, const MutableView& out,
                     const LinearOptions& options = {});

/// Where linear_backward writes; each may be left out.
struct LinearGradients {
    MutableView dx{};       ///< shape of x
    MutableView dweight{};  ///< [N,K]
    MutableView dbias{};    ///< [N]
    /// dweight and dbias are added to what is there.
    bool accumulate = false;
    /// dx is added to what is there.
    bool accumulate_dx = false;
};

struct LinearBackwardOptions {
    Activation activation = Activation::none;
    View before_activation{};  ///< as linear wrote it; needed where there is an activation
    /// Shape and type of dout: room for the gradient before the activation. Where it is absent, memory is allocated.
    MutableView room{};
};

/// Gradients of sum(dout * out).
HEED_API void linear_backward(Context& context, const View& x, const View& weight, const View& dout,
                              const LinearGradients& gradients, const LinearBackwardOptions& options = {});

}  // namespace heed
