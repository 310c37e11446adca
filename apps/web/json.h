#pragma once
#include <nlohmann/json.hpp>

namespace heed::web {
using Json = nlohmann::ordered_json;
}
