#pragma once
#include <map>
#include <string>
#include <string_view>

namespace heed {

/// The weight_map of an untrusted model.safetensors.index.json: the file of each tensor, a plain name in the same
/// folder. FileErrors begin with the label.
std::map<std::string, std::string> read_weight_index(std::string_view label, std::string_view text);

}  // namespace heed
