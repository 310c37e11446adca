#include "model/index.h"

#include <heed/error.h>

#include "io/file.h"
#include "model/config_text.h"

namespace heed {
namespace {

bool is_plain_name(const std::string& name) {
    return !name.empty() && name != "." && name != ".." &&
           name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
}

}  // namespace

std::map<std::string, std::string> read_weight_index(std::string_view label, std::string_view text) {
    const std::string where = "[Model::load] " + std::string(label) + ": ";
    nlohmann::json file;
    try {
        file = parse_config("Model::load", text);
    } catch (const Error& error) { throw FileError(where + error.what()); }
    const auto map = file.find("weight_map");
    if (map == file.end() || !map->is_object()) {
        throw FileError(where + "weight_map: expected an object, got " + (map == file.end() ? "none" : shown(*map)));
    }
    std::map<std::string, std::string> result;
    for (const auto& [tensor, shard] : map->items()) {
        if (!shard.is_string()) { throw FileError(where + "weight_map: expected file names, got " + shown(shard)); }
        const auto name = shard.get<std::string>();
        if (!is_plain_name(name)) {
            throw FileError(where + "weight_map: expected names of files in the folder, got " + in_quotes(name));
        }
        result.emplace(tensor, name);
    }
    return result;
}

}  // namespace heed
