/// Patterns made of whole blocks: given lists, and lists drawn at random.
#include <array>
#include <bit>
#include <memory>
#include <type_traits>
#include <utility>

#include <heed/random.h>

#include "ops/pattern_node.h"

namespace heed {
namespace {

using namespace pattern_detail;

/// First to last, both included.
struct BlockRange {
    std::int64_t first;
    std::int64_t last;

    static BlockRange of(std::int64_t begin, std::int64_t end, std::int64_t block_size) {
        return {floor_div(begin, block_size), floor_div(end - 1, block_size)};
    }
    std::uint64_t size() const { return count_between(first, last) + 1; }
};

/// Ones for the part of `keys` that lies in this block: not a negative one, and none beyond the last key.
void allow_block(const Row& keys, std::int64_t block, std::int64_t block_size) {
    const std::int64_t first = block * block_size;
    keys.allow(first, saturating_add(first, block_size - 1));
}

/// Joins what single blocks of queries say into what the tile is.
class CoverOfBlocks {
public:
    explicit CoverOfBlocks(std::uint64_t key_blocks) : key_blocks_(key_blocks) {}
    /// A block of queries that sees `seen` of the tile's blocks of keys. False once nothing can change any more.
    bool add(std::uint64_t seen) {
        any_ = any_ || seen > 0;
        all_ = all_ && seen == key_blocks_;
        return !any_ || all_;
    }
    Cover result() const { return !any_ ? Cover::none : all_ ? Cover::all : Cover::some; }

private:
    std::uint64_t key_blocks_;
    bool any_ = false;
    bool all_ = true;
};

/// Exactly the listed blocks, as compressed rows: the blocks of queries that see anything, and for each of them
/// the blocks of keys, sorted.
class Blocks final : public Pattern::Node {
public:
    Blocks(std::int64_t query_block_size, std::int64_t key_block_size, std::vector<patterns::BlockPair> pairs)
        : query_block_size_(query_block_size), key_block_size_(key_block_size) {
        const auto order = [](const patterns::BlockPair& a, const patterns::BlockPair& b) {
            return std::pair(a.query_block, a.key_block) < std::pair(b.query_block, b.key_block);
        };
        std::sort(pairs.begin(), pairs.end(), order);
        for (std::size_t n = 0; n < pairs.size(); ++n) {
            if (n > 0 && !order(pairs[n - 1], pairs[n])) continue;
            if (query_blocks_.empty() || query_blocks_.back() != pairs[n].query_block) {
                query_blocks_.push_back(pairs[n].query_block);
                starts_.push_back(key_blocks_.size());
            }
            key_blocks_.push_back(pairs[n].key_block);
        }
        starts_.push_back(key_blocks_.size());
    }

    bool allows(std::int64_t, std::int64_t, std::int64_t query, std::int64_t key) const override {
        const auto [begin, end] = keys_of(floor_div(query, query_block_size_));
        return std::binary_search(begin, end, floor_div(key, key_block_size_));
    }

    /// Exact.
    Cover cover(const PatternTile& tile) const override {
        const auto queries = BlockRange::of(tile.query_begin, tile.query_end, query_block_size_);
        const auto keys = BlockRange::of(tile.key_begin, tile.key_end, key_block_size_);
        CoverOfBlocks cover(keys.size());
        const auto present = first_listed(queries.first);
        auto at = present;
        for (; at != query_blocks_.end() && *at <= queries.last; ++at) {
            const auto [begin, end] = keys_at(static_cast<std::size_t>(at - query_blocks_.begin()));
            const auto first = std::lower_bound(begin, end, keys.first);
            if (!cover.add(static_cast<std::uint64_t>(std::upper_bound(first, end, keys.last) - first))) {
                return Cover::some;
            }
        }
        // Blocks of queries that are not listed see nothing.
        if (static_cast<std::uint64_t>(at - present) < queries.size()) cover.add(0);
        return cover.result();
    }

    void row(std::int64_t, std::int64_t, std::int64_t query, std::int64_t key_begin, std::int64_t key_end,
             std::uint8_t* allowed) const override {
        const Row keys{key_begin, key_end, allowed};
        keys.fill(0);
        const auto range = BlockRange::of(key_begin, key_end, key_block_size_);
        const auto [begin, end] = keys_of(floor_div(query, query_block_size_));
        for (auto block = std::lower_bound(begin, end, range.first); block != end && *block <= range.last; ++block) {
            allow_block(keys, *block, key_block_size_);
        }
    }

    std::string describe(Lists lists) const override {
        if (lists == Lists::all) { return concat("blocks(", query_block_size_, "x", key_block_size_, pairs(), ")"); }
        return concat("blocks(", query_block_size_, "x", key_block_size_, ", ", key_blocks_.size(),
                      key_blocks_.size() == 1 ? " pair)" : " pairs)");
    }

    void write(PatternWriter& program) const override {
        std::vector<std::int64_t> operands{query_block_size_, key_block_size_,
                                           static_cast<std::int64_t>(query_blocks_.size())};
        operands.insert(operands.end(), query_blocks_.begin(), query_blocks_.end());
        for (const std::size_t start : starts_) { operands.push_back(static_cast<std::int64_t>(start)); }
        operands.insert(operands.end(), key_blocks_.begin(), key_blocks_.end());
        program.write(PatternCode::blocks, operands);
    }

private:
    using Iterator = std::vector<std::int64_t>::const_iterator;

    /// ", 0:0, 1:0"
    std::string pairs() const {
        std::string text;
        for (std::size_t row = 0; row < query_blocks_.size(); ++row) {
            for (std::size_t n = starts_[row]; n < starts_[row + 1]; ++n) {
                text += concat(", ", query_blocks_[row], ":", key_blocks_[n]);
            }
        }
        return text;
    }

    /// The first listed block of queries that is not before this one.
    Iterator first_listed(std::int64_t query_block) const {
        // Mostly every block is listed, and number n is then at place n.
        if (query_block >= 0 && static_cast<std::uint64_t>(query_block) < query_blocks_.size() &&
            query_blocks_[static_cast<std::size_t>(query_block)] == query_block) {
            return query_blocks_.begin() + query_block;
        }
        return std::lower_bound(query_blocks_.begin(), query_blocks_.end(), query_block);
    }
    std::pair<Iterator, Iterator> keys_at(std::size_t row) const {
        return {key_blocks_.begin() + static_cast<std::ptrdiff_t>(starts_[row]),
                key_blocks_.begin() + static_cast<std::ptrdiff_t>(starts_[row + 1])};
    }
    std::pair<Iterator, Iterator> keys_of(std::int64_t query_block) const {
        const auto at = first_listed(query_block);
        if (at == query_blocks_.end() || *at != query_block) return {key_blocks_.end(), key_blocks_.end()};
        return keys_at(static_cast<std::size_t>(at - query_blocks_.begin()));
    }

    std::int64_t query_block_size_;
    std::int64_t key_block_size_;
    std::vector<std::int64_t> query_blocks_;  ///< sorted, each once
    std::vector<std::size_t> starts_;         ///< of each one's blocks of keys; one more at the end
    std::vector<std::int64_t> key_blocks_;
};

/// A set of numbers below `size`, one bit each. Up to 16384 (a million keys in blocks of 64) it needs no heap.
class BitSet {
public:
    static constexpr std::int64_t inline_size = 16384;

    explicit BitSet(std::int64_t size) { clear(size); }
    void clear(std::int64_t size) {
        const std::size_t words = (static_cast<std::size_t>(size) + 63) / 64;
        if (size > inline_size) {
            heap_.assign(words, 0);
            words_ = heap_.data();
        } else {
            std::fill_n(inline_.begin(), words, 0);
            words_ = inline_.data();
        }
    }
    BitSet(const BitSet&) = delete;
    BitSet& operator=(const BitSet&) = delete;

    bool has(std::int64_t n) const { return (words_[n / 64] >> (n % 64) & 1U) != 0; }
    void insert(std::int64_t n) { words_[n / 64] |= std::uint64_t{1} << (n % 64); }
    /// Members in [first, last].
    std::uint64_t count(std::int64_t first, std::int64_t last) const {
        if (first > last) return 0;
        std::uint64_t total = 0;
        for (std::int64_t word = first / 64; word <= last / 64; ++word) {
            std::uint64_t bits = words_[word];
            if (word == first / 64) bits &= ~std::uint64_t{0} << (first % 64);
            if (word == last / 64) bits &= ~std::uint64_t{0} >> (63 - last % 64);
            total += static_cast<std::uint64_t>(std::popcount(bits));
        }
        return total;
    }

private:
    std::array<std::uint64_t, inline_size / 64> inline_;
    std::vector<std::uint64_t> heap_;
    std::uint64_t* words_;
};

/// Blocks of keys drawn for each block of queries when somebody asks: one Philox call gives four of them, and so heads
/// and sequences of any number need no table.
class RandomBlocks final : public Pattern::Node {
public:
    RandomBlocks(std::int64_t block, std::int64_t blocks, std::int64_t count, std::uint64_t seed)
        : block_(block), blocks_(blocks), count_(count), seed_(seed) {}

    bool allows(std::int64_t, std::int64_t head, std::int64_t query, std::int64_t key) const override {
        const std::int64_t key_block = floor_div(key, block_);
        if (key_block < 0 || key_block >= blocks_) return false;
        return with_drawn(head, floor_div(query, block_), [&](const BitSet& drawn) { return drawn.has(key_block); });
    }

    /// Exact.
    Cover cover(const PatternTile& tile) const override {
        const auto queries = BlockRange::of(tile.query_begin, tile.query_end, block_);
        const auto keys = BlockRange::of(tile.key_begin, tile.key_end, block_);
        const std::int64_t first = std::max(keys.first, std::int64_t{0});
        const std::int64_t last = std::min(keys.last, blocks_ - 1);
        if (count_ == 0 || first > last) return Cover::none;
        if (count_ == blocks_) return first == keys.first && last == keys.last ? Cover::all : Cover::some;
        CoverOfBlocks cover(keys.size());
        for (std::int64_t query_block = queries.first; query_block <= queries.last; ++query_block) {
            const auto count = [&](const BitSet& drawn) { return drawn.count(first, last); };
            if (!cover.add(with_drawn(tile.head, query_block, count))) return Cover::some;
        }
        return cover.result();
    }

    void row(std::int64_t, std::int64_t head, std::int64_t query, std::int64_t key_begin, std::int64_t key_end,
             std::uint8_t* allowed) const override {
        const Row keys{key_begin, key_end, allowed};
        keys.fill(0);
        const auto range = BlockRange::of(key_begin, key_end, block_);
        const std::int64_t first = std::max(range.first, std::int64_t{0});
        const std::int64_t last = std::min(range.last, blocks_ - 1);
        if (first > last) return;
        with_drawn(head, floor_div(query, block_), [&](const BitSet& drawn) {
            for (std::int64_t block = first; block <= last; ++block) {
                if (drawn.has(block)) allow_block(keys, block, block_);
            }
        });
    }

    std::string describe(Lists) const override {
        return concat("random_blocks(", block_, ", ", blocks_, ", ", count_, ", seed ", seed_, ")");
    }
    void write(PatternWriter& program) const override {
        program.write(PatternCode::random_blocks, {block_, blocks_, count_, static_cast<std::int64_t>(seed_)});
    }

private:
    /// use(the blocks drawn). Kernels ask about one block of queries many times, so each thread keeps its last draw.
    template <class Use>
    std::invoke_result_t<const Use&, const BitSet&> with_drawn(std::int64_t head, std::int64_t query_block,
                                                               const Use& use) const {
        if (blocks_ > BitSet::inline_size) {
            BitSet drawn(blocks_);
            draw(head, query_block, drawn);
            return use(drawn);
        }
        struct LastDraw {
            std::int64_t blocks = -1, count = 0, head = 0, query_block = 0;
            std::uint64_t seed = 0;
            BitSet drawn{0};
        };
        thread_local LastDraw last;
        if (last.blocks != blocks_ || last.count != count_ || last.seed != seed_ || last.head != head ||
            last.query_block != query_block) {
            last.drawn.clear(blocks_);
            draw(head, query_block, last.drawn);
            last.blocks = blocks_, last.count = count_, last.seed = seed_;
            last.head = head, last.query_block = query_block;
        }
        return use(last.drawn);
    }

    /// Floyd's sampling: for m = blocks - count ... blocks - 1 take a number of [0, m], or m itself where that one
    /// is taken already. Every set of `count` blocks is as likely as any other.
    void draw(std::int64_t head, std::int64_t query_block, BitSet& drawn) const {
        // The tag keeps these words apart from the dropout words of the same seed, whose last counter is small.
        constexpr std::uint32_t tag = 0x52424C4BU;
        const auto query_bits = static_cast<std::uint64_t>(query_block);
        std::array<std::uint32_t, 4> words{};
        for (std::int64_t n = 0; n < count_; ++n) {
            if (n % 4 == 0) {
                words =
                    philox4x32({static_cast<std::uint32_t>(n / 4), static_cast<std::uint32_t>(query_bits),
                                static_cast<std::uint32_t>(head), tag ^ static_cast<std::uint32_t>(query_bits >> 32)},
                               seed_);
            }
            const std::int64_t m = blocks_ - count_ + n;
            const auto choice = static_cast<std::int64_t>(
                (std::uint64_t{words[static_cast<std::size_t>(n % 4)]} * static_cast<std::uint64_t>(m + 1)) >> 32);
            drawn.insert(drawn.has(choice) ? m : choice);
        }
    }

    std::int64_t block_;
    std::int64_t blocks_;
    std::int64_t count_;
    std::uint64_t seed_;
};

}  // namespace

Pattern patterns::random_blocks(std::int64_t block, std::int64_t blocks, std::int64_t count, std::uint64_t seed) {
    constexpr const char* function = "patterns::random_blocks";
    expect_at_least(function, "block", block, 1);
    expect_at_least(function, "blocks", blocks, 0);
    // A draw is a 32-bit word scaled to the number of blocks; more blocks would leave some out.
    if (blocks > std::numeric_limits<std::int32_t>::max()) {
        refuse(function, "blocks", "less than 2^31", concat(blocks));
    }
    if (count < 0 || count > blocks) { refuse(function, "count", concat("0 to ", blocks, " (blocks)"), concat(count)); }
    return pattern_of(std::make_shared<RandomBlocks>(block, blocks, count, seed));
}

Pattern patterns::blocks(std::int64_t query_block_size, std::int64_t key_block_size, std::span<const BlockPair> pairs) {
    constexpr const char* function = "patterns::blocks";
    expect_at_least(function, "query_block_size", query_block_size, 1);
    expect_at_least(function, "key_block_size", key_block_size, 1);
    for (std::size_t n = 0; n < pairs.size(); ++n) {
        const auto [query_block, key_block] = pairs[n];
        if (query_block < 0) {
            refuse(function, concat("pairs[", n, "].query_block"), "at least 0", concat(query_block));
        }
        if (key_block < 0) { refuse(function, concat("pairs[", n, "].key_block"), "at least 0", concat(key_block)); }
    }
    return pattern_of(
        std::make_shared<Blocks>(query_block_size, key_block_size, std::vector<BlockPair>(pairs.begin(), pairs.end())));
}

}  // namespace heed
