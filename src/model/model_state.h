#pragma once
#include <heed/model.h>
#include <heed/safetensors.h>

#include <filesystem>
#include <string>
#include <vector>

#include "model/graph.h"

namespace heed {

struct ModelState {
    ModelConfig config;
    std::string config_text;  ///< the file it came from, where that was not heed's own
    GenerationConfig generation;
    std::string generation_text;  ///< of generation_config.json, where there was one
    Parameters parameters;
    ModelGraph graph;
    WeightStorage weights = WeightStorage::stored;
    std::vector<SafetensorsFile> files;  ///< whose mapped memory the parameters may be
    std::vector<std::string> unused;
    std::filesystem::path folder;
};

}  // namespace heed
