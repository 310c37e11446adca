#pragma once
/// Every pattern a second time, as a plain predicate written from its formula, for the tests to compare with.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <set>
#include <utility>
#include <vector>

#include <heed/pattern.h>
#include <heed/random.h>

namespace heed::testing {

using Numbers = std::vector<std::int64_t>;
using Predicate = std::function<bool(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j)>;

struct Case {
    Pattern pattern;
    Predicate predicate;
};

/// Block or residue of a position, by walking: slow, obvious, right below 0.
inline std::int64_t block_of(std::int64_t position, std::int64_t size) {
    std::int64_t block = 0;
    while (position >= size) position -= size, ++block;
    while (position < 0) position += size, --block;
    return block;
}
inline std::int64_t residue_of(std::int64_t position, std::int64_t size) {
    return position - block_of(position, size) * size;
}

inline Case causal_case() {
    return {patterns::causal(), [](auto, auto, auto i, auto j) { return j <= i; }};
}

inline Case window_case(std::int64_t left, std::int64_t right) {
    return {patterns::window(left, right), [=](auto, auto, auto i, auto j) {
                return (left == -1 || i - j <= left) && (right == -1 || j - i <= right);
            }};
}

inline Case length_case(bool is_padding, const Numbers& lengths) {
    return {is_padding ? patterns::padding(lengths) : patterns::prefix(lengths), [=](auto b, auto, auto, auto j) {
                return j < lengths.at(lengths.size() == 1 ? 0 : static_cast<std::size_t>(b));
            }};
}

inline Case document_case(const std::vector<Numbers>& ids) {
    return {patterns::document(ids), [=](auto b, auto, auto i, auto j) {
                const Numbers& list = ids.at(ids.size() == 1 ? 0 : static_cast<std::size_t>(b));
                const auto size = static_cast<std::int64_t>(list.size());
                if (i < 0 || j < 0 || i >= size || j >= size) return false;
                return list.at(static_cast<std::size_t>(i)) == list.at(static_cast<std::size_t>(j));
            }};
}

inline Case strided_case(std::int64_t stride) {
    return {patterns::strided(stride), [=](auto, auto, auto i, auto j) { return std::abs(i - j) % stride == 0; }};
}

inline Case fixed_case(std::int64_t stride, std::int64_t summary) {
    return {patterns::fixed(stride, summary), [=](auto, auto, auto i, auto j) {
                return block_of(i, stride) == block_of(j, stride) || residue_of(j, stride) + summary >= stride;
            }};
}

inline Case dilated_case(std::int64_t left, std::int64_t right, std::int64_t dilation) {
    return {patterns::dilated(left, right, dilation), [=](auto, auto, auto i, auto j) {
                if (std::abs(j - i) % dilation != 0) return false;
                const auto n = (j - i) / dilation;
                return (left == -1 || n >= -left) && (right == -1 || n <= right);
            }};
}

inline Case global_case(const Numbers& positions) {
    return {patterns::global_tokens(positions), [=](auto, auto, auto i, auto j) {
                const auto listed = [&](std::int64_t p) {
                    return std::find(positions.begin(), positions.end(), p) != positions.end();
                };
                return listed(i) || listed(j);
            }};
}

/// The draw as the header promises it.
inline std::set<std::int64_t> draw_blocks(std::int64_t blocks, std::int64_t count, std::uint64_t seed,
                                          std::int64_t head, std::int64_t query_block) {
    std::set<std::int64_t> drawn;
    for (std::int64_t n = 0; n < count; ++n) {
        const auto q = static_cast<std::uint64_t>(query_block);
        const std::uint64_t word =
            philox4x32({static_cast<std::uint32_t>(n / 4), static_cast<std::uint32_t>(q),
                        static_cast<std::uint32_t>(head), static_cast<std::uint32_t>(q >> 32) ^ 0x52424C4BU},
                       seed)[static_cast<std::size_t>(n % 4)];
        const std::int64_t m = blocks - count + n;
        const auto choice = static_cast<std::int64_t>(word * static_cast<std::uint64_t>(m + 1) / (1ULL << 32));
        if (!drawn.insert(choice).second) drawn.insert(m);
    }
    return drawn;
}

inline Case random_case(std::int64_t block, std::int64_t blocks, std::int64_t count, std::uint64_t seed) {
    return {patterns::random_blocks(block, blocks, count, seed), [=](auto, auto h, auto i, auto j) {
                return draw_blocks(blocks, count, seed, h, block_of(i, block)).contains(block_of(j, block));
            }};
}

inline Case blocks_case(std::int64_t query_size, std::int64_t key_size,
                        const std::vector<std::pair<std::int64_t, std::int64_t>>& list) {
    std::vector<patterns::BlockPair> pairs;
    for (const auto& [q, k] : list) pairs.push_back({q, k});
    return {patterns::blocks(query_size, key_size, pairs), [=](auto, auto, auto i, auto j) {
                const std::pair block(block_of(i, query_size), block_of(j, key_size));
                return std::find(list.begin(), list.end(), block) != list.end();
            }};
}

inline Case operator&(const Case& a, const Case& b) {
    return {a.pattern & b.pattern, [p = a.predicate, q = b.predicate](auto... x) { return p(x...) && q(x...); }};
}
inline Case operator|(const Case& a, const Case& b) {
    return {a.pattern | b.pattern, [p = a.predicate, q = b.predicate](auto... x) { return p(x...) || q(x...); }};
}

inline Case per_head_case(const std::vector<Case>& heads) {
    std::vector<Pattern> list;
    for (const Case& head : heads) list.push_back(head.pattern);
    return {patterns::per_head(list), [=](auto b, auto h, auto i, auto j) {
                return heads.at(static_cast<std::size_t>(h)).predicate(b, h, i, j);
            }};
}

/// What cover() would say if it looked at every pair.
inline Cover brute_cover(const Predicate& predicate, const PatternTile& tile) {
    bool any = false;
    bool all = true;
    for (std::int64_t i = tile.query_begin; i < tile.query_end; ++i) {
        for (std::int64_t j = tile.key_begin; j < tile.key_end; ++j) {
            const bool allowed = predicate(tile.batch, tile.head, i, j);
            any = any || allowed;
            all = all && allowed;
        }
    }
    return !any ? Cover::none : all ? Cover::all : Cover::some;
}

/// allows() against the predicate and row() against allows(), for all i and j of [low, high).
inline void expect_same(const Case& c, std::int64_t low, std::int64_t high, std::int64_t batches = 1,
                        std::int64_t heads = 1) {
    std::vector<std::uint8_t> row(static_cast<std::size_t>(high - low) + 1);
    for (std::int64_t b = 0; b < batches; ++b) {
        for (std::int64_t h = 0; h < heads; ++h) {
            for (std::int64_t i = low; i < high; ++i) {
                std::fill(row.begin(), row.end(), std::uint8_t{77});
                c.pattern.row(b, h, i, low, high, row.data());
                ASSERT_EQ(row.back(), 77) << c.pattern.describe() << ": wrote past the row";
                for (std::int64_t j = low; j < high; ++j) {
                    const bool expected = c.predicate(b, h, i, j);
                    ASSERT_EQ(c.pattern.allows(b, h, i, j), expected)
                        << c.pattern.describe() << " b " << b << " h " << h << " i " << i << " j " << j;
                    ASSERT_EQ(row[static_cast<std::size_t>(j - low)], expected ? 1 : 0)
                        << "row of " << c.pattern.describe() << " b " << b << " h " << h << " i " << i << " j " << j;
                }
            }
        }
    }
}

}  // namespace heed::testing
