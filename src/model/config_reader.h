#pragma once
#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace heed {

/// The keys of an untrusted config.json, read with their type and range checked. A key that is null counts as absent,
/// as it does for the software that writes these files.
class ConfigReader {
public:
    /// One name, or the names that different versions gave the same thing; if several are there they must agree.
    using Key = std::initializer_list<std::string_view>;

    /// Throws Error unless the text is one JSON object without duplicate keys.
    explicit ConfigReader(std::string_view text);

    std::int64_t integer(Key key, std::int64_t low, std::int64_t high) const;
    std::int64_t integer_or(Key key, std::int64_t low, std::int64_t high, std::int64_t absent) const;
    bool boolean_or(std::string_view key, bool absent) const;
    std::optional<std::string> text(std::string_view key) const;
    std::optional<std::string> first_text(std::string_view list_key) const;
    bool has(std::string_view key) const { return find(key) != nullptr; }
    bool mentions(std::string_view key) const { return object_.contains(key); }  ///< be it as null

    /// Error `[model_from_config] key: expected ..., came ...` with the value as it stands in the file.
    [[noreturn]] void refuse(std::string_view key, const std::string& expected) const;

private:
    const nlohmann::json* find(std::string_view key) const;

    nlohmann::json object_;
};

}  // namespace heed
