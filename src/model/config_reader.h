#pragma once
#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace heed {

/// The keys of an untrusted config.json, read with their type and range checked. A key that is null counts as absent,
/// as it does for the software that writes these files.
class ConfigReader {
public:
    /// One name, or the names that different versions gave the same thing; if several are there they must agree.
    using Key = std::initializer_list<std::string_view>;

    /// Throws Error unless the text is one JSON object without duplicate keys. Messages begin with `[function]`.
    ConfigReader(std::string_view function, std::string_view text);

    std::int64_t integer(Key key, std::int64_t low, std::int64_t high) const;
    std::int64_t integer_or(Key key, std::int64_t low, std::int64_t high, std::int64_t absent) const;
    /// Finite and within [low, high].
    double number_or(std::string_view key, double low, double high, double absent) const;
    bool boolean_or(std::string_view key, bool absent) const;
    std::optional<std::string> text(std::string_view key) const;
    std::optional<std::string> first_text(std::string_view list_key) const;
    std::vector<std::string> texts(std::string_view key) const;
    /// One integer or a list of them.
    std::vector<std::int64_t> integers(std::string_view key, std::int64_t low, std::int64_t high) const;
    bool has(std::string_view key) const { return find(key) != nullptr; }
    bool mentions(std::string_view key) const { return object_.contains(key); }  ///< be it as null

    /// Error `[function] key: expected ..., got ...` with the value as it stands in the file.
    [[noreturn]] void refuse(std::string_view key, const std::string& expected) const;

    /// The same with a key more.
    ConfigReader with_text(std::string_view key, std::string_view value) const;

    std::string_view source() const { return source_; }
    const std::string& function() const { return function_; }

private:
    const nlohmann::json* find(std::string_view key) const;
    [[noreturn]] void fail(std::string_view key, const std::string& expected, const std::string& got) const;

    std::string function_;
    std::string source_;
    nlohmann::json object_;
};

}  // namespace heed
