#pragma once
#include "base/pool.h"
#include "kernel/quantized_problem.h"
#include "kernel/tensor_rows.h"

#include <span>

/// Weights into the layout of quantised ones. Both take the pool's lock themselves.

namespace heed::cpu {

/// Rounds rows of weights; false where one is not finite, or too large for a scale in f16.
bool quantize(detail::Pool& pool, const TensorRows& weight, const QuantizedPanels& to);
/// The numbers of Q8_0 or Q4_0 blocks as they are.
void panels_of_blocks(detail::Pool& pool, std::span<const std::byte> blocks, const QuantizedPanels& to);

}  // namespace heed::cpu
