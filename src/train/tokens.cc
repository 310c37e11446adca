#include "train/tokens.h"

#include <algorithm>
#include <span>

namespace heed {

Tokens::Tokens(std::vector<std::uint32_t> ids) : count_(static_cast<std::int64_t>(ids.size())) {
    list_ = std::make_shared<const std::vector<std::uint32_t>>(std::move(ids));
}

Tokens Tokens::in_file(const std::filesystem::path& path, int width) {
    Tokens tokens;
    tokens.file_ = std::make_shared<const InputFile>("open_data", path);
    tokens.width_ = width;
    tokens.name_ = path.string();
    const std::uint64_t bytes = tokens.file_->size();
    if (bytes % static_cast<std::uint64_t>(width) != 0) {
        throw FileError("[open_data] " + tokens.name_ + ": expected ids of " + std::to_string(8 * width) +
                        " bits, got " + std::to_string(bytes) + " bytes, no multiple of " + std::to_string(width));
    }
    tokens.count_ = static_cast<std::int64_t>(bytes / static_cast<std::uint64_t>(width));
    return tokens;
}

Tokens Tokens::bytes_of(const std::filesystem::path& path) { return in_file(path, 1); }

Tokens Tokens::of_file(const std::filesystem::path& path, TokenType type, std::int64_t limit) {
    Tokens tokens = in_file(path, type == TokenType::u16 ? 2 : 4);
    tokens.limit_ = limit;
    return tokens;
}

Tokens Tokens::slice(std::int64_t begin, std::int64_t end) const {
    Tokens part = *this;
    part.first_ += begin;
    part.count_ = end - begin;
    return part;
}

std::vector<std::int64_t> Tokens::read(std::int64_t begin, std::int64_t count) const {
    std::vector<std::byte> bytes(static_cast<std::size_t>(count * width_));
    file_->read(static_cast<std::uint64_t>((first_ + begin) * width_), bytes);
    std::vector<std::int64_t> ids(static_cast<std::size_t>(count), 0);
    for (std::size_t n = 0; n < ids.size(); ++n) {
        for (auto byte = static_cast<std::size_t>(width_); byte-- > 0;) {
            ids[n] = ids[n] << 8 | std::to_integer<std::int64_t>(bytes[n * static_cast<std::size_t>(width_) + byte]);
        }
    }
    return ids;
}

std::vector<std::int64_t> Tokens::window(std::int64_t begin, std::int64_t count) const {
    if (list_) {
        const auto from = list_->begin() + first_ + begin;
        return {from, from + count};
    }
    std::vector<std::int64_t> ids = read(begin, count);
    for (const std::int64_t id : ids) {
        if (limit_ > 0 && id >= limit_) {
            throw FileError("[open_data] " + name_ + ": expected ids below " + std::to_string(limit_) +
                            ", the model's vocabulary, got " + std::to_string(id));
        }
    }
    return ids;
}

std::int64_t Tokens::largest() const {
    constexpr std::int64_t at_once = std::int64_t{1} << 18;
    std::int64_t most = -1;
    for (std::int64_t begin = 0; begin < count_; begin += at_once) {
        const std::int64_t count = std::min(at_once, count_ - begin);
        for (const std::int64_t id : list_ ? window(begin, count) : read(begin, count)) { most = std::max(most, id); }
    }
    return most;
}

}  // namespace heed
