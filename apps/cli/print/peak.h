#pragma once
#include <heed/context.h>
#include <heed/dtype.h>
#include <heed/model_config.h>

namespace heed::cli {

/// Operations a second of a large matrix product on all threads of the context: the most that training could reach.
/// Takes about a tenth of a second.
double product_peak(Context& context, DType dtype);

/// Operations of forward and backward for one token of a sequence of `tokens`; 0 where layers differ too much to say.
double training_operations(const ModelConfig& model, std::int64_t tokens);

}  // namespace heed::cli
