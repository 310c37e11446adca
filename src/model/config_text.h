#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace heed {

/// An untrusted config.json: one JSON object of bounded size and depth, no key twice in one place. The words Infinity,
/// -Infinity and NaN, which Python writes, come as texts. Anything else is an Error `[function] json: expected ..., got
/// ...`.
nlohmann::json parse_config(std::string_view function, std::string_view text);

/// A value as an error message can show it: plain ASCII, short.
std::string shown(const nlohmann::json& value);

}  // namespace heed
