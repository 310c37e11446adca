#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include <heed/pattern.h>

/// What `heed patterns` counts and draws.
namespace heed::cli {

/// One head of a pattern over T queries and S keys, cut into blocks as a kernel would.
struct PatternPicture {
    Pattern pattern;
    std::int64_t queries = 0, keys = 0, block = 0, head = 0;

    std::int64_t query_blocks = 0, key_blocks = 0;
    std::vector<Cover> covers;  ///< [query_blocks][key_blocks]: what a kernel is told of each block
    std::int64_t full = 0, partial = 0;
    std::int64_t pairs = 0;          ///< that may be seen
    std::int64_t causal_blocks = 0;  ///< those that a causal mask alone visits

    /// The last query stands at the last key (Align::bottom_right).
    PatternPicture(Pattern pattern, std::int64_t queries, std::int64_t keys, std::int64_t block, std::int64_t head);

    Cover cover(std::int64_t row, std::int64_t column) const {
        return covers[static_cast<std::size_t>(row * key_blocks + column)];
    }
    std::int64_t visited() const { return full + partial; }
    std::int64_t blocks() const { return query_blocks * key_blocks; }
    double share() const { return blocks() == 0 ? 0 : static_cast<double>(visited()) / static_cast<double>(blocks()); }
    /// Position of query row i.
    std::int64_t position(std::int64_t i) const { return i + keys - queries; }
};

/// Most blocks along one side: what can be counted in a moment.
constexpr std::int64_t most_blocks = 4096;

/// At most `width` cells a line; one cell stands for several blocks where there are more.
std::string draw_text(const PatternPicture& picture, std::int64_t width, bool ascii);
/// A complete SVG document: blocks in two tones, and the pairs themselves where they are few enough to be seen.
std::string draw_svg(const PatternPicture& picture);

}  // namespace heed::cli
