#pragma once
/// Activations of feed-forward layers, elementwise, and gated products. In all of them every tensor may have any
/// strides (a last axis of stride 1 is fastest) and any of f32, bf16, f16, f64, mixed as you like; arithmetic is
/// float32, double where anything is f64.

#include <string_view>

#include <heed/context.h>
#include <heed/error.h>
#include <heed/view.h>

namespace heed {

enum class Activation : std::uint8_t {
    none,        ///< x
    relu,        ///< max(x, 0), derivative 0 at 0
    gelu,        ///< x/2 (1 + erf(x / sqrt 2))
    gelu_tanh,   ///< x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
    quick_gelu,  ///< x sigmoid(1.702 x)
    silu,        ///< x sigmoid(x)
    tanh,
    sigmoid,
};

HEED_API std::string_view name_of(Activation activation);
/// The names above and those that public configurations use for them: gelu_new, gelu_pytorch_tanh, gelu_python_tanh,
/// gelu_fast, gelu_accurate (all gelu_tanh), gelu_python (gelu), swish (silu), linear (none). Throws Error for another.
HEED_API Activation activation_of(std::string_view name);

/// out = f(x), all of one shape. out may be x itself.
HEED_API void activate(Context& context, Activation activation, const View& x, const MutableView& out);
/// dx = f'(x) dout. dx may be dout itself.
HEED_API void activate_backward(Context& context, Activation activation, const View& x, const View& dout,
                                const MutableView& dx);

/// out = f(gate) * up, all of one shape: SwiGLU is silu, gated GELU gelu or gelu_tanh. out may be gate or up.
HEED_API void gated(Context& context, Activation activation, const View& gate, const View& up, const MutableView& out);
/// dgate = f'(gate) * up * dout and dup = f(gate) * dout; each may be left out, or lie where gate, up or dout does.
HEED_API void gated_backward(Context& context, Activation activation, const View& gate, const View& up,
                             const View& dout, const MutableView& dgate, const MutableView& dup);

}  // namespace heed
