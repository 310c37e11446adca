#pragma once
/// Activations of one number.

#include <heed/activation.h>

namespace heed::cuda {

template <class A>
__device__ inline A sigmoid(A x) {
    return x >= 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x));
}
constexpr double gelu_root = 0.79788456080286535588, gelu_cubic = 0.044715, quick = 1.702;
constexpr double root_half = 0.70710678118654752440, root_two_pi = 2.50662827463100050242;

template <class A>
__device__ inline A activated(Activation activation, A x) {
    switch (activation) {
        case Activation::relu: return x < 0 ? A{0} : x;
        case Activation::gelu: return x * erfc(-x * static_cast<A>(root_half)) / 2;
        case Activation::gelu_tanh:
            return x / 2 * (1 + tanh(static_cast<A>(gelu_root) * (x + static_cast<A>(gelu_cubic) * x * x * x)));
        case Activation::quick_gelu: return x * sigmoid(static_cast<A>(quick) * x);
        case Activation::silu: return x * sigmoid(x);
        case Activation::tanh: return tanh(x);
        case Activation::sigmoid: return sigmoid(x);
        default: return x;
    }
}

}  // namespace heed::cuda
