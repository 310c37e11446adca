#pragma once
/// Cross-entropy of logits against targets, and the same fused with the output projection so that the logits of all
/// tokens never exist at once.
///
///     loss of a row = logsumexp(z) - sum_v q_v z_v,    gradient = softmax(z) - q
///
/// q is 1 at the target, or smoothed. Rows whose target is `ignore` have no loss and no gradient.

#include <heed/context.h>
#include <heed/error.h>
#include <heed/view.h>

namespace heed {

enum class Smoothing : std::uint8_t {
    uniform,  ///< q = (1 - eps) onehot + eps / V, as PyTorch
    others,   ///< q = 1 - eps at the target, eps / (V - 1) elsewhere, as the code of 2017
};

struct CrossEntropyOptions {
    std::int64_t ignore = -100;
    double label_smoothing = 0;  ///< eps, 0 to 1
    Smoothing smoothing = Smoothing::uniform;
    /// Losses are divided by this; 0: by the number of targets that are not ignored. Where gradients of several batches
    /// are accumulated, give the number of all of them.
    double divisor = 0;
    /// Gradients are multiplied by this: the derivative of what is minimised by the loss.
    double dloss = 1;
};

struct CrossEntropy {
    double loss = 0;  ///< sum over rows / divisor; 0 where there is no target
    double nll = 0;   ///< the same without smoothing: perplexity is exp of this
    std::int64_t targets = 0;
};

/// The least loss that smoothing leaves: the entropy of q for V classes.
HEED_API double least_loss(std::int64_t classes, const CrossEntropyOptions& options);

struct CrossEntropyOutputs {
    MutableView dlogits{};  ///< shape of logits; may be logits itself where that is writable
    MutableView losses{};   ///< shape of targets, f32 or f64: the loss of each row, not divided
};

/// logits [...,V] of any float type, targets [...] i32 or i64, each 0..V-1 or `ignore`. Sums are float32 or better.
HEED_API CrossEntropy cross_entropy(Context& context, const View& logits, const View& targets,
                                    const CrossEntropyOptions& options = {}, const CrossEntropyOutputs& outputs = {});

struct LinearCrossEntropyOptions {
    CrossEntropyOptions loss{};
    View bias{};         ///< [V]
    double softcap = 0;  ///< z = softcap tanh(z / softcap); 0: none
    /// u8 [N], N as linear_cross_entropy_room says or more: memory for the chunks. Where it is absent, it is allocated.
    MutableView room{};
};

/// Bytes that linear_cross_entropy with all gradients needs for its chunks.
HEED_API std::size_t linear_cross_entropy_room(const View& hidden, const View& weight);

struct LinearCrossEntropyGradients {
    MutableView dhidden{};    ///< shape of hidden
    MutableView dweight{};    ///< [V,K]
    MutableView dbias{};      ///< [V]
    bool accumulate = false;  ///< dweight and dbias are added to what is there
    MutableView losses{};     ///< shape of targets, f32 or f64: the loss of each row, not divided
};

/// cross_entropy of hidden [...,K] weight^T + bias, weight [V,K], in chunks of rows: memory for a few million logits,
/// whatever the number of tokens. Where no gradient is asked for, only the loss is computed.
HEED_API CrossEntropy linear_cross_entropy(Context& context, const View& hidden, const View& weight,
                                           const View& targets, const LinearCrossEntropyOptions& options = {},
                                           const LinearCrossEntropyGradients& gradients = {});

}  // namespace heed
