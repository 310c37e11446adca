#pragma once
#include <heed/sizes.h>

#include <string>

/// The model of a Hugging Face config.json, or of the folder that holds one, named after it.
heed::ModelShape load_model_config(const char* command, const std::string& argument);
