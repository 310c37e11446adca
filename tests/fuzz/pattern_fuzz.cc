#include <heed/error.h>
#include <heed/pattern.h>

#include <algorithm>
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

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    try {
        const heed::Pattern pattern = heed::patterns::parse({reinterpret_cast<const char*>(data), size});
        constexpr std::int64_t lowest = std::numeric_limits<std::int64_t>::min();
        constexpr std::int64_t highest = std::numeric_limits<std::int64_t>::max() - side;
        for (const std::int64_t query : {std::int64_t{-3}, std::int64_t{1000}, lowest, highest}) {
            for (const std::int64_t key : {std::int64_t{-3}, std::int64_t{1000}, lowest, highest}) {
                check_tile(pattern, query, key);
            }
        }
        const std::string text = pattern.describe();
        // Long lists are summed up, and then are no pattern any more.
        if (text.find("in all") != std::string::npos || text.find("list") != std::string::npos ||
            text.find("pair") != std::string::npos) {
            return 0;
        }
        require(heed::patterns::parse(text).describe() == text);
    } catch (const heed::Error&) { return 0; }
    return 0;
}
