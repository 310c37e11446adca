#pragma once
/// What open_data chooses among.

#include <heed/train.h>

#include <memory>

namespace heed {

std::unique_ptr<TrainData> open_task(const TrainConfig& config);
/// Windows of a text or of a file of tokens.
std::unique_ptr<TrainData> open_text(const TrainConfig& config);
/// JSON lines.
std::unique_ptr<TrainData> open_lines(const TrainConfig& config);

}  // namespace heed
