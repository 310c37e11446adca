#pragma once
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace heed::text {

/// A place in an untrusted JSON text. What is asked of it and not there is an Error that names the place.
class JsonField {
public:
    JsonField(const nlohmann::json& value, std::string name) : value_(&value), name_(std::move(name)) {}

    const nlohmann::json& value() const { return *value_; }
    const std::string& name() const { return name_; }
    bool is_null() const { return value_->is_null(); }

    /// null where there is none.
    JsonField operator[](const char* key) const;
    /// Its elements, in order.
    void for_each(const std::function<void(const JsonField&)>& visit) const;

    const std::string& text() const;
    std::string text_or(std::string_view otherwise) const;
    bool flag_or(bool otherwise) const;
    std::int64_t number(std::int64_t low, std::int64_t high) const;
    std::int64_t number_or(std::int64_t otherwise, std::int64_t low, std::int64_t high) const;
    /// Exactly one character.
    char32_t character() const;

    [[noreturn]] void fail(const std::string& expected) const;
    [[noreturn]] void fail(const std::string& expected, const std::string& got) const;

private:
    const nlohmann::json* value_;
    std::string name_;
};

/// Bounded in size and depth.
nlohmann::json parse_json(std::string_view text, const char* name, std::size_t size_limit, int depth_limit);

}  // namespace heed::text
