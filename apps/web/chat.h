#pragma once
#include <cstdint>
#include <vector>

#include "json.h"
#include "model_folder.h"

namespace heed::web {

/// The ids of a conversation ("messages"), by the template of the model's folder. HttpError 400 where there is none, or
/// it refuses. Special tokens that a message spells out are letters.
std::vector<std::int64_t> read_conversation(const OpenModel& open, const Json& messages);

}  // namespace heed::web
