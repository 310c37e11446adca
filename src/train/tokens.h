#pragma once
#include <heed/train.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "io/file.h"

namespace heed {

/// Token ids one behind the other: in memory, or in a file of any size, of which a window at a time is read. Reading
/// rather than mapping, because a file that somebody shortens meanwhile is then an error and not the end of the
/// process.
class Tokens {
public:
    Tokens() = default;
    explicit Tokens(std::vector<std::uint32_t> ids);
    /// A text whose bytes are the ids.
    static Tokens bytes_of(const std::filesystem::path& path);
    /// Little-endian ids. Those from `limit` on are errors when they are read; 0: any id will do.
    static Tokens of_file(const std::filesystem::path& path, TokenType type, std::int64_t limit);

    std::int64_t size() const { return count_; }
    Tokens slice(std::int64_t begin, std::int64_t end) const;
    std::vector<std::int64_t> window(std::int64_t begin, std::int64_t count) const;
    /// The largest id of all; -1 where there are none.
    std::int64_t largest() const;

private:
    static Tokens in_file(const std::filesystem::path& path, int width);
    std::vector<std::int64_t> read(std::int64_t begin, std::int64_t count) const;

    std::shared_ptr<const std::vector<std::uint32_t>> list_;
    std::shared_ptr<const InputFile> file_;  ///< where there is no list
    int width_ = 4;                          ///< bytes of an id in the file
    std::int64_t first_ = 0, count_ = 0;
    std::int64_t limit_ = 0;
    std::string name_;  ///< of the file, for errors
};

}  // namespace heed
