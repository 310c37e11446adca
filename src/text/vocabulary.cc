#include "text/vocabulary.h"

#include <heed/error.h>

#include <algorithm>

#include "base/refuse.h"
#include "text/json_field.h"

namespace heed::text {

void refuse_unknown() {
    refuse("Tokenizer", "text", "words of the vocabulary, as the file's unk_token is not one of its tokens", "others");
}

Vocabulary::Vocabulary(const JsonField& field) {
    if (!field.value().is_object()) { field.fail("an object of tokens and ids"); }
    constexpr std::int64_t id_most = 0x7FFFFFFE;
    // Memory in proportion to what the file has, whatever ids it claims.
    const std::int64_t dense = static_cast<std::int64_t>(field.value().size()) * 8 + 65536;
    ids_.reserve(field.value().size());
    for (const auto& [token, id] : field.value().items()) {
        const std::int64_t number = JsonField(id, field.name()).number(0, id_most);
        if (number >= dense) { field.fail("ids without wide gaps", "the id " + std::to_string(number)); }
        const auto at = static_cast<std::size_t>(number);
        if (at >= tokens_.size()) {
            tokens_.resize(at + 1);
            has_.resize(at + 1);
        }
        if (has_[at]) { field.fail("every id once", std::to_string(number) + " twice"); }
        tokens_[at] = token;
        has_[at] = true;
        ids_.set(token, static_cast<std::int32_t>(number));
    }
}

Vocabulary::Vocabulary(std::vector<std::string> tokens) : tokens_(std::move(tokens)), has_(tokens_.size(), true) {
    ids_.reserve(tokens_.size());
    for (std::size_t id = 0; id < tokens_.size(); ++id) { ids_.set(tokens_[id], static_cast<std::int32_t>(id)); }
}

std::vector<std::int32_t> Vocabulary::byte_tokens() const {
    constexpr char digits[] = "0123456789ABCDEF";
    std::vector<std::int32_t> result(256);
    for (unsigned byte = 0; byte < 256; ++byte) {
        result[byte] = ids_.find(std::string("<0x") + digits[byte / 16] + digits[byte % 16] + ">");
    }
    return result;
}

}  // namespace heed::text
