#include "model/config_reader.h"

#include <heed/error.h>

#include <cmath>

#include "base/refuse.h"
#include "model/config_text.h"

namespace heed {
namespace {

std::string joined(ConfigReader::Key key) {
    std::string result;
    for (const std::string_view name : key) { result += (result.empty() ? "" : " or ") + std::string(name); }
    return result;
}

}  // namespace

ConfigReader::ConfigReader(std::string_view function, std::string_view text)
    : function_(function), source_(text), object_(parse_config(function, text)) {}

ConfigReader ConfigReader::with_text(std::string_view key, std::string_view value) const {
    nlohmann::json object = object_;
    object[std::string(key)] = value;
    return ConfigReader(function_, object.dump());
}

void ConfigReader::fail(std::string_view key, const std::string& expected, const std::string& got) const {
    heed::refuse(function_, std::string(key), expected, got);
}

const nlohmann::json* ConfigReader::find(std::string_view key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
}

void ConfigReader::refuse(std::string_view key, const std::string& expected) const {
    const nlohmann::json* value = find(key);
    fail(key, expected, value != nullptr ? shown(*value) : object_.contains(key) ? "null" : "no such key");
}

std::int64_t ConfigReader::integer(Key key, std::int64_t low, std::int64_t high) const {
    const std::string range = "an integer from " + std::to_string(low) + " to " + std::to_string(high);
    std::optional<std::int64_t> result;
    std::string_view first;
    for (const std::string_view name : key) {
        const nlohmann::json* value = find(name);
        if (value == nullptr) { continue; }
        // Beyond the signed range a number is unsigned or, further, a double.
        if (!value->is_number_integer() ||
            (value->is_number_unsigned() && value->get<std::uint64_t>() > static_cast<std::uint64_t>(high))) {
            refuse(name, range);
        }
        const auto number = value->get<std::int64_t>();
        if (number < low || number > high) { refuse(name, range); }
        if (result && *result != number) {
            refuse(name, "the same as " + std::string(first) + ", " + std::to_string(*result));
        }
        result = number;
        first = name;
    }
    if (!result) {
        const std::string_view only = *key.begin();
        fail(joined(key), range, key.size() == 1 && object_.contains(only) ? "null" : "no such key");
    }
    return *result;
}

std::int64_t ConfigReader::integer_or(Key key, std::int64_t low, std::int64_t high, std::int64_t absent) const {
    for (const std::string_view name : key) {
        if (has(name)) { return integer(key, low, high); }
    }
    return absent;
}

double ConfigReader::number_or(std::string_view key, double low, double high, double absent) const {
    const nlohmann::json* value = find(key);
    if (value == nullptr) { return absent; }
    const double number = value->is_number() ? value->get<double>() : std::nan("");
    if (!(number >= low && number <= high)) {
        refuse(key, "a number from " + shown(nlohmann::json(low)) + " to " + shown(nlohmann::json(high)));
    }
    return number;
}

bool ConfigReader::boolean_or(std::string_view key, bool absent) const {
    const nlohmann::json* value = find(key);
    if (value == nullptr) { return absent; }
    if (!value->is_boolean()) { refuse(key, "true or false"); }
    return value->get<bool>();
}

std::optional<std::string> ConfigReader::text(std::string_view key) const {
    const nlohmann::json* value = find(key);
    if (value == nullptr) { return std::nullopt; }
    if (!value->is_string()) { refuse(key, "a string"); }
    return value->get<std::string>();
}

std::vector<std::string> ConfigReader::texts(std::string_view key) const {
    const nlohmann::json* value = find(key);
    std::vector<std::string> result;
    if (value == nullptr) { return result; }
    if (!value->is_array()) { refuse(key, "a list of strings"); }
    for (const nlohmann::json& entry : *value) {
        if (!entry.is_string()) { refuse(key, "a list of strings"); }
        result.push_back(entry.get<std::string>());
    }
    return result;
}

std::optional<std::string> ConfigReader::first_text(std::string_view list_key) const {
    const nlohmann::json* value = find(list_key);
    if (value == nullptr) { return std::nullopt; }
    if (!value->is_array()) { refuse(list_key, "a list of strings"); }
    if (value->empty()) { return std::nullopt; }
    if (!value->front().is_string()) { refuse(list_key, "a list of strings"); }
    return value->front().get<std::string>();
}

std::vector<std::int64_t> ConfigReader::integers(std::string_view key, std::int64_t low, std::int64_t high) const {
    const nlohmann::json* value = find(key);
    if (value == nullptr) { return {}; }
    const nlohmann::json list = value->is_array() ? *value : nlohmann::json::array({*value});
    std::vector<std::int64_t> result;
    for (const nlohmann::json& entry : list) {
        if (!entry.is_number_integer() ||
            (entry.is_number_unsigned() && entry.get<std::uint64_t>() > static_cast<std::uint64_t>(high)) ||
            entry.get<std::int64_t>() < low || entry.get<std::int64_t>() > high) {
            refuse(key,
                   "an integer from " + std::to_string(low) + " to " + std::to_string(high) + " or a list of them");
        }
        result.push_back(entry.get<std::int64_t>());
    }
    return result;
}

}  // namespace heed
