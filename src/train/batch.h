#pragma once
/// What a batch is to a model.

#include <heed/train.h>

namespace heed {

/// Error unless every field is in range.
void check_options(const TrainOptions& options);

ForwardInputs inputs_of(const TrainBatch& batch);

}  // namespace heed
