#include <heed/error.h>
#include <heed/pattern.h>

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "require.h"

namespace {

constexpr std::int64_t side = 8;

/// The three ways to ask a pattern agree on one tile.
void check_tile(const heed::Pattern& pattern, std::int64_t query_begin, std::int64_t key_begin) {
    const heed::PatternTile tile{.batch = 1,
                                 .head = 1,
                                 .query_begin = query_begin,
                                 .query_end = query_begin + side,
                                 .key_begin = key_begin,
                                 .key_end = key_begin + side};
    std::int64_t seen = 0;
    for (std::int64_t query = tile.query_begin; query < tile.query_end; ++query) {
        std::array<std::uint8_t, side> allowed{};
        pattern.row(tile.batch, tile.head, query, tile.key_begin, tile.key_end, allowed.data());
        for (std::int64_t n = 0; n < side; ++n) {
            const bool allows = pattern.allows(tile.batch, tile.head, query, tile.key_begin + n);
            require(allowed[static_cast<std::size_t>(n)] == (allows ? 1 : 0));
            seen += allows ? 1 : 0;
        }
    }
    const heed::Cover cover = pattern.cover(tile);
    require(cover != heed::Cover::none || seen == 0);
    require(cover != heed::Cover::all || seen == side * side);
}

/// Around 0, beyond most lists, and at the ends of int64.
void check_tiles(const heed::Pattern& pattern) {
    constexpr std::int64_t places[] = {-3, 1000, std::numeric_limits<std::int64_t>::min(),
                                       std::numeric_limits<std::int64_t>::max() - side};
    for (const std::int64_t query : places) {
        for (const std::int64_t key : places) { check_tile(pattern, query, key); }
    }
}

/// random_blocks draws anew at every question, which is slow where there are millions of blocks, and no fault.
bool draws_from_many(const std::string& text) {
    constexpr std::string_view name = "random_blocks(";
    for (std::size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + 1)) {
        const std::size_t comma = text.find(',', at);
        if (std::stoll(text.substr(comma + 1)) > 4096) { return true; }
    }
    return false;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    try {
        const heed::Pattern pattern = heed::patterns::parse({reinterpret_cast<const char*>(data), size});
        const std::string text = pattern.describe();
        if (!draws_from_many(text)) { check_tiles(pattern); }
        // Long lists are summed up, and then are no pattern any more.
        if (text.find("in all") != std::string::npos || text.find("list") != std::string::npos ||
            text.find("pair") != std::string::npos) {
            return 0;
        }
        require(heed::patterns::parse(text).describe() == text);
    } catch (const heed::Error&) { return 0; }
    return 0;
}
