#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace heed {

/// Throws an Error that names the key.
using ConfigFailure = void (*)(std::string_view key, const std::string& expected, const std::string& came);

/// An untrusted config.json: one JSON object of bounded size and depth, no key twice in one place. Anything else goes
/// to `fail`.
nlohmann::json parse_config(std::string_view text, ConfigFailure fail);

/// A value as an error message can show it: plain ASCII, short.
std::string shown(const nlohmann::json& value);

}  // namespace heed
