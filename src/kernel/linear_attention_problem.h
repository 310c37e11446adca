#pragma once
#include <heed/linear_attention.h>

#include "base/dispatch.h"

#include <algorithm>

namespace heed {

/// A checked call of linear attention: every size agrees. Kernels trust it. Types may differ between the tensors.
struct LinearAttentionProblem {
    std::int64_t batch = 0, heads = 0, kv_heads = 0, states = 0, queries = 0, keys = 0;
    std::int64_t head_size = 0, feature_size = 0, value_size = 0;
    LinearAttentionOptions options;
    /// Denominators below this count as 0; 0: only 0 does.
    double least_denominator = 0;

    View q, k, v;
    LinearState initial;
    MutableView out;  // forward
    MutableLinearState final;

    View dout;  // backward; absent: 0
    LinearState dfinal;
    LinearAttentionGradients gradients;
    /// [B,N], where ddecay is wanted: what each entry adds to it. Fast kernels write here.
    double* ddecay_parts = nullptr;

    std::int64_t readers() const { return heads / states; }     ///< query heads of a state
    std::int64_t sharers() const { return states / kv_heads; }  ///< states of a key/value head

    double decay(std::int64_t state) const {
        const View& decays = options.decay;
        return decays ? read_number(decays.dtype(), decays.data(), state * decays.stride(0)) : 1;
    }
    /// Is there more than a constant decay: a decay per token, or the delta rule?
    bool gated() const { return options.log_decay || options.rule == UpdateRule::delta; }
    std::int64_t keys_of(std::int64_t b) const {
        const View& lengths = options.key_lengths;
        return lengths ? std::min(keys, read_integer(lengths.dtype(), lengths.data(), b * lengths.stride(0))) : keys;
    }
    std::int64_t queries_of(std::int64_t b) const { return options.causal ? keys_of(b) : queries; }
    /// Is the denominator, epsilon included, one to divide by?
    bool divides(double denominator) const {
        return denominator != 0 && !(least_denominator > 0 && denominator < least_denominator);
    }
};

}  // namespace heed
