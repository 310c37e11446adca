#include "reference/activation.h"

#include "reference/numbers.h"

#include <cmath>
#include <numbers>

namespace heed::reference {
namespace {

double sigmoid(double x) { return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x)); }

// gelu_tanh: x/2 (1 + tanh u), u = sqrt(2/pi) (x + 0.044715 x^3)
const double gelu_root = std::sqrt(2 / std::numbers::pi);
constexpr double gelu_cubic = 0.044715;
constexpr double quick = 1.702;

double gelu_inner(double x) { return gelu_root * (x + gelu_cubic * x * x * x); }
/// The normal distribution up to x, and its density.
double normal_below(double x) { return std::erfc(-x / std::numbers::sqrt2) / 2; }
double normal_at(double x) { return std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi); }

}  // namespace

double activated(Activation activation, double x) {
    switch (activation) {
        case Activation::none: return x;
        case Activation::relu: return x < 0 ? 0 : x;
        case Activation::gelu: return x * normal_below(x);
        case Activation::gelu_tanh: return x / 2 * (1 + std::tanh(gelu_inner(x)));
        case Activation::quick_gelu: return x * sigmoid(quick * x);
        case Activation::silu: return x * sigmoid(x);
        case Activation::tanh: return std::tanh(x);
        case Activation::sigmoid: return sigmoid(x);
    }
    return x;
}

double activation_slope(Activation activation, double x) {
    switch (activation) {
        case Activation::none: return 1;
        case Activation::relu: return x > 0 ? 1 : x <= 0 ? 0 : x;
        case Activation::gelu: return normal_below(x) + x * normal_at(x);
        case Activation::gelu_tanh: {
            const double t = std::tanh(gelu_inner(x));
            return (1 + t) / 2 + x / 2 * (1 - t * t) * gelu_root * (1 + 3 * gelu_cubic * x * x);
        }
        case Activation::quick_gelu: {
            const double s = sigmoid(quick * x);
            return s * (1 + quick * x * (1 - s));
        }
        case Activation::silu: {
            const double s = sigmoid(x);
            return s * (1 + x * (1 - s));
        }
        case Activation::tanh: {
            const double t = std::tanh(x);
            return 1 - t * t;
        }
        case Activation::sigmoid: {
            const double s = sigmoid(x);
            return s * (1 - s);
        }
    }
    return 1;
}

void activation(const ActivationProblem& p, std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
        Row out = numbers(p.gate, row, p.shape.columns);
        const Row up = numbers(p.up, row, p.shape.columns, 1);
        for (std::size_t c = 0; c < out.size(); ++c) { out[c] = activated(p.activation, out[c]) * up[c]; }
        put_numbers(p.out, row, out);
    }
}

void activation_backward(const ActivationProblem& p, std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
        Row dgate = numbers(p.dout, row, p.shape.columns), dup = dgate;
        const Row gate = numbers(p.gate, row, p.shape.columns), up = numbers(p.up, row, p.shape.columns, 1);
        for (std::size_t c = 0; c < gate.size(); ++c) {
            dgate[c] *= activation_slope(p.activation, gate[c]) * up[c];
            dup[c] *= activated(p.activation, gate[c]);
        }
        put_numbers(p.dgate, row, dgate);
        put_numbers(p.dup, row, dup);
    }
}

}  // namespace heed::reference
