#pragma once
#include <cstdint>
#include <span>

namespace heed {

/// Makes each token that was seen less probable, once: divides its logit by `penalty` if positive, else multiplies.
void penalise(std::span<float> logits, std::span<const std::int64_t> seen, double penalty);

}  // namespace heed
