#pragma once
/// What the server reads from a model's folder.

#include <optional>
#include <string>
#include <vector>

#include <heed/chat.h>
#include <heed/model.h>
#include <heed/tokenizer.h>

namespace heed::web {

struct OpenModel {
    Model model;
    std::optional<Tokenizer> tokenizer = {};  ///< tokenizer.json
    std::optional<ChatTemplate> chat = {};    ///< chat_template.jinja or tokenizer_config.json, where they have one
    std::string chat_refused = {};            ///< why a template that is there cannot be used
    std::vector<std::string> special = {};    ///< how the tokenizer's special tokens are spelled
    std::string name = {};                    ///< of the folder, or of the run
};

/// A folder with config.json, or a run of `heed train`, whose best model it is. `weights`: how its linear layers hold
/// theirs.
OpenModel open_model(const std::string& folder, WeightStorage weights = WeightStorage::stored);

}  // namespace heed::web
