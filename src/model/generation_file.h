#pragma once
#include <heed/generation_config.h>
#include <heed/model_config.h>

#include <string_view>

namespace heed {

/// The text of a generation_config.json, or of a config.json, which older folders have instead. Special tokens that it
/// names replace those of `config`. Not trusted: what is wrong is an Error.
GenerationConfig read_generation_config(std::string_view text, ModelConfig& config);

}  // namespace heed
