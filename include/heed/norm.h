#pragma once
/// Layer norm and RMS norm over the last axis, with the residual added in the same pass. Every tensor is f32, bf16, f16
/// or f64 of any strides; statistics are float32 or better (double where anything is f64).
///
///     s = x + residual                                    // s = x where there is no residual
///     layer_norm: out = w (s - mean) / sqrt(var + eps) + b    // var: biased, mean of (s - mean)^2
///     rms_norm:   out = w s / sqrt(mean(s^2) + eps)
///     w = weight_offset + weight, or 1 where there is no weight

#include <heed/context.h>
#include <heed/error.h>
#include <heed/view.h>

namespace heed {

struct NormOptions {
    double eps = 1e-5;
    View weight{};             ///< [N]
    View bias{};               ///< [N], layer_norm alone
    double weight_offset = 0;  ///< 1 for models that store weight - 1 (Gemma)
    View residual{};           ///< shape of x
    MutableView sum{};         ///< shape of x: s; may be x or residual itself
};

/// out [...,N] of x [...,N]. out may be x itself where there is no residual.
HEED_API void layer_norm(Context& context, const View& x, const MutableView& out, const NormOptions& options = {});
HEED_API void rms_norm(Context& context, const View& x, const MutableView& out, const NormOptions& options = {});

/// Where the backward passes write; each may be left out.
struct NormGradients {
    MutableView dx{};       ///< shape of x: the gradient of s, which is that of x and of residual; may be dout or dsum
    MutableView dweight{};  ///< [N]
    MutableView dbias{};    ///< [N]
    bool accumulate = false;  ///< dweight and dbias are added to what is there
};

struct NormBackwardOptions {
    double eps = 1e-5;
    View weight{};  ///< as forward
    double weight_offset = 0;
    View dsum{};  ///< shape of s: what else flows into s, added to dx
};

/// Gradients of sum(dout * out) + sum(dsum * s). `s` is what was normalised: x, or the sum with the residual.
HEED_API void layer_norm_backward(Context& context, const View& s, const View& dout, const NormGradients& gradients,
                                  const NormBackwardOptions& options = {});
HEED_API void rms_norm_backward(Context& context, const View& s, const View& dout, const NormGradients& gradients,
                                const NormBackwardOptions& options = {});

}  // namespace heed
