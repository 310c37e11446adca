#pragma once
#include <heed/model_config.h>

#include <span>
#include <string_view>

#include "model/config_reader.h"

namespace heed {

/// A Hugging Face family: how its config.json is read. How its tensors are called stands in names.h.
struct Family {
    std::string_view model_type;
    ModelConfig (*read)(const ConfigReader&);
    std::string_view base;  ///< architecture without a head
    std::string_view full;  ///< architecture with a language head
};

/// By model_type, in alphabetical order.
std::span<const Family> all_families();

}  // namespace heed
