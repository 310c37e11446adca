#pragma once
#include <heed/model_config.h>

#include <string_view>

namespace heed {

/// heed's own config.json, every key known, sizes not yet completed: see checked().
ModelConfig config_from_json(std::string_view text);

}  // namespace heed
