#pragma once
/// What Model.forward hands out besides logits, and what it takes to change it.

#include <heed/model.h>

#include <string>
#include <vector>

#include "array.h"

namespace heed::python {

/// `capture`: "hidden", "attention", "attention_inputs".
void read_capture(const std::vector<std::string>& capture, ForwardOptions& options);

/// head_factors: an array [layers, heads], or a dict with self, decoder and cross. For the length of a call.
class HeadFactorArrays {
public:
    explicit HeadFactorArrays(nb::handle value);
    HeadFactors views() const { return {self_.view(), decoder_.view(), cross_.view()}; }

private:
    Array self_, decoder_, cross_;
};

/// attention_inputs.N (encoder_, decoder_ and cross_ of an encoder-decoder): {"q": ..., "k": ..., "options": {...}},
/// ready for heed.attention_weights(q, k, **options).
void add_attention_inputs(nb::dict& named, const CapturedInputs& inputs);

/// Model.early_logits and Model.logits.
void bind_logits(nb::class_<Model>& model);

}  // namespace heed::python
