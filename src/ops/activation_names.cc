#include <heed/activation.h>

#include "ops/checks.h"

#include <array>
#include <string>

namespace heed {
namespace {

struct ActivationName {
    std::string_view name;
    Activation activation;
};
constexpr std::array activation_names = {
    ActivationName{"none", Activation::none},
    ActivationName{"relu", Activation::relu},
    ActivationName{"gelu", Activation::gelu},
    ActivationName{"gelu_tanh", Activation::gelu_tanh},
    ActivationName{"quick_gelu", Activation::quick_gelu},
    ActivationName{"silu", Activation::silu},
    ActivationName{"tanh", Activation::tanh},
    ActivationName{"sigmoid", Activation::sigmoid},
    // Other names of the same.
    ActivationName{"linear", Activation::none},
    ActivationName{"gelu_new", Activation::gelu_tanh},
    ActivationName{"gelu_pytorch_tanh", Activation::gelu_tanh},
    ActivationName{"gelu_fast", Activation::gelu_tanh},
    ActivationName{"gelu_accurate", Activation::gelu_tanh},
    ActivationName{"gelu_python", Activation::gelu},
    ActivationName{"gelu_python_tanh", Activation::gelu_tanh},
    ActivationName{"swish", Activation::silu},
};

}  // namespace

std::string_view name_of(Activation activation) {
    for (const ActivationName& each : activation_names) {
        if (each.activation == activation) { return each.name; }
    }
    return "";
}

Activation activation_of(std::string_view name) {
    std::string known;
    for (const ActivationName& each : activation_names) {
        if (each.name == name) { return each.activation; }
        known += (known.empty() ? "" : ", ") + std::string(each.name);
    }
    refuse("activation_of", "name", "one of " + known, "\"" + std::string(name) + "\"");
}

}  // namespace heed
