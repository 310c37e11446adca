#pragma once
#include <memory>
#include <string>
#include <vector>

#include "text/regex.h"

namespace heed::text {

class JsonField;

/// How GPT-2 splits a text before it merges bytes.
constexpr std::string_view gpt2_pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// {"String": "..."} or {"Regex": "..."}: what to split at or to replace.
class Pattern {
public:
    explicit Pattern(const JsonField& field);
    explicit Pattern(std::string_view regex) : regex_(std::make_unique<Regex>(regex)) {}

    void find_all(std::string_view text, Regex::Scratch& scratch, std::vector<Span>& found) const;
    std::string replaced(std::string_view text, std::string_view content) const;

private:
    std::string plain_;
    std::unique_ptr<Regex> regex_;
};

}  // namespace heed::text
