#pragma once
/// Adam and AdamW on lists of tensors, the global norm and clipping.

#include <span>

#include <heed/context.h>
#include <heed/error.h>
#include <heed/view.h>

namespace heed {

/// One tensor of a model. All views have one shape, row-major.
struct AdamParameter {
    MutableView value{};    ///< any float type; keep it f32 and use `rounded` for a bf16 model
    View gradient{};        ///< any float type
    MutableView first{};    ///< f32 or f64: the running mean of gradients, zeros at the start
    MutableView second{};   ///< f32 or f64: the running mean of their squares, zeros at the start
    MutableView rounded{};  ///< optional: value again in another type, for computing with
    bool decay = true;      ///< false for biases, norms and usually embeddings
};

struct AdamOptions {
    double learning_rate = 1e-3;
    double beta1 = 0.9;
    double beta2 = 0.999;
    double eps = 1e-8;
    double weight_decay = 0;
    /// true: value *= 1 - learning_rate * weight_decay (AdamW); false: weight_decay * value joins the gradient (Adam).
    bool decoupled = true;
    std::int64_t step = 1;      ///< counted from 1
    double gradient_scale = 1;  ///< what gradients are multiplied by first: see clip_factor
};

/// m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  value -= lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
HEED_API void adam(Context& context, std::span<const AdamParameter> parameters, const AdamOptions& options);

/// sqrt of the sum of all squares, summed in double in an order that depends on the shapes alone. Not finite where a
/// gradient is not.
HEED_API double global_norm(Context& context, std::span<const View> tensors);

/// What to multiply gradients by so that their norm is at most `largest`: min(1, largest / (norm + 1e-6)).
HEED_API double clip_factor(double norm, double largest);

}  // namespace heed
