#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/string_table.h"

namespace heed::text {

class JsonField;

/// For a text with something unknown, where the file's unk_token is no token.
[[noreturn]] void refuse_unknown();

/// Tokens and their ids, both ways.
class Vocabulary {
public:
    Vocabulary() = default;
    /// From {"token": id, ...}; ids need not be without gaps, but nearly.
    explicit Vocabulary(const JsonField& field);
    /// From a list; of equal tokens the last has the id.
    explicit Vocabulary(std::vector<std::string> tokens);

    std::optional<std::int64_t> id_of(std::string_view token) const {
        const std::int32_t found = ids_.find(token);
        if (found == StringTable::none) { return std::nullopt; }
        return found;
    }
    std::int32_t find(std::string_view token) const { return ids_.find(token); }
    std::optional<std::string_view> token_of(std::int64_t id) const {
        if (id < 0 || id >= id_limit() || !has_[static_cast<std::size_t>(id)]) { return std::nullopt; }
        return tokens_[static_cast<std::size_t>(id)];
    }
    std::int64_t size() const { return static_cast<std::int64_t>(ids_.size()); }
    std::int64_t id_limit() const { return static_cast<std::int64_t>(tokens_.size()); }
    /// "<0x00>" to "<0xFF>", -1 where there is none.
    std::vector<std::int32_t> byte_tokens() const;

private:
    StringTable ids_;
    std::vector<std::string> tokens_;
    std::vector<bool> has_;
};

}  // namespace heed::text
