#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <heed/dtype.h>

namespace heed {
namespace detail {
struct Access;
}  // namespace detail

/// What a pattern says of a whole tile, so that kernels skip or need not look.
enum class Cover : std::uint8_t { none, some, all };

/// Queries [query_begin, query_end) against keys [key_begin, key_end), as positions.
struct PatternTile {
    std::int64_t batch = 0;
    std::int64_t head = 0;
    std::int64_t query_begin = 0;
    std::int64_t query_end = 0;
    std::int64_t key_begin = 0;
    std::int64_t key_end = 0;
};

/// Which query may see which key: a value that composes with & (both) and | (either).
///
/// Patterns speak of positions: a query's aligned position (see AttentionOptions::align) or its
/// explicit one, and the key's index or explicit position. So one pattern serves training, prefill
/// and decoding alike. Any position may be asked about, negative ones too.
///
/// A pattern never changes and shares what it holds: copies cost nothing, and threads may use one together.
///
///     using namespace heed::patterns;
///     heed::Pattern sinks_and_recent = causal() & (prefix({4}) | window(511, 0));
class HEED_API Pattern {
public:
    /// Absent: everything may be seen.
    Pattern() = default;

    explicit operator bool() const { return node_ != nullptr; }
    bool allows(std::int64_t batch, std::int64_t head, std::int64_t query, std::int64_t key) const;
    /// `none` and `all` hold for every pair of the tile; `some` is always a safe answer. Exact for each building
    /// block (document: where each id lies in one piece); a & b and a | b join the answers of their parts.
    /// An empty tile is `none`.
    Cover cover(const PatternTile& tile) const;
    /// allowed[n] = 1 where `query` may see key_begin + n, else 0.
    void row(std::int64_t batch, std::int64_t head, std::int64_t query, std::int64_t key_begin, std::int64_t key_end,
             std::uint8_t* allowed) const;
    /// "causal & (window(256, 0) | global(0))"; long lists are cut short.
    std::string describe() const;
    /// The same with all of every list: patterns::parse reads it back.
    std::string text() const;
    /// Throws Error, naming `function`, where the pattern does not fit so many batch entries and heads.
    void check(const char* function, std::int64_t batches, std::int64_t heads) const;

    /// Seen by both, seen by either. Absent counts as everything: absent & p is p, absent | p is absent.
    HEED_API friend Pattern operator&(Pattern a, Pattern b);
    HEED_API friend Pattern operator|(Pattern a, Pattern b);

    struct Node;  ///< private to the library

private:
    friend struct detail::Access;
    explicit Pattern(std::shared_ptr<const Node> node) : node_(std::move(node)) {}
    std::shared_ptr<const Node> node_;
};

/// The building blocks. Below, i is the query's position and j the key's. Blocks and strides are counted from
/// position 0 and go on evenly below it. Wrong arguments throw Error.
namespace patterns {

/// j <= i
HEED_API Pattern causal();
/// i - left <= j <= i + right; -1 is unlimited.
HEED_API Pattern window(std::int64_t left, std::int64_t right);
/// j < lengths[b]; one length serves every batch entry.
HEED_API Pattern padding(std::vector<std::int64_t> lengths);
/// j < lengths[b]: together with causal, `prefix(n) | causal()` is a prefix language model.
HEED_API Pattern prefix(std::vector<std::int64_t> lengths);
/// ids[b][i] == ids[b][j]: packed documents keep to themselves. A position outside the list sees nothing.
HEED_API Pattern document(std::vector<std::vector<std::int64_t>> ids);
/// (i - j) mod stride == 0 (Sparse Transformer, strided head).
HEED_API Pattern strided(std::int64_t stride);
/// Same block of `stride`, or one of the last `summary` columns of any block (Sparse Transformer, fixed).
HEED_API Pattern fixed(std::int64_t stride, std::int64_t summary);
/// j = i + n*dilation for -left <= n <= right; -1 is unlimited.
HEED_API Pattern dilated(std::int64_t left, std::int64_t right, std::int64_t dilation);
/// i or j is one of these positions (Longformer).
HEED_API Pattern global_tokens(std::vector<std::int64_t> positions);
/// Blocks of `block` x `block`; each block of queries sees `count` blocks drawn without repetition from the
/// `blocks` blocks of keys; the draw depends on (seed, head, query block) alone (BigBird). Keys outside the
/// `blocks` blocks are not seen; there may be more blocks of queries than that. Asking about a query costs `count`
/// draws and blocks / 8 bytes.
///
/// The draw, the same on every machine: for n = 0 ... count-1, with m = blocks - count + n, take
/// c = word * (m + 1) / 2^32, or m where c is taken already; word is number n % 4 of philox4x32 with key = seed and
/// counter (n / 4, low half of the query block, head, high half of the query block ^ 0x52424C4B).
HEED_API Pattern random_blocks(std::int64_t block, std::int64_t blocks, std::int64_t count, std::uint64_t seed);

struct BlockPair {
    std::int64_t query_block = 0;
    std::int64_t key_block = 0;
};
/// Exactly these blocks of query_block_size x key_block_size. Pairs may repeat and come in any order; a mask is a
/// set, so repetition changes nothing.
HEED_API Pattern blocks(std::int64_t query_block_size, std::int64_t key_block_size, std::span<const BlockPair> pairs);
/// pattern_of_head[h]: a pattern for each query head; an absent one sees everything.
HEED_API Pattern per_head(std::vector<Pattern> pattern_of_head);

/// The pattern that a text names: "causal & (window(256, 0) | global(0))", as text() writes it. The building
/// blocks by their names above, `global` for short, `everything` for the absent pattern; & binds tighter than |.
///
///     padding(7, 5)                one length for each batch entry
///     document(0*3, 1*5; 0*8)      ids, id*count for repeated ones; a list for each batch entry, apart by ;
///     random_blocks(64, 32, 3, 1)  or random_blocks(64, 32, 3, seed 1)
///     blocks(64x64, 0:0, 1:0)      block sizes, then pairs query_block:key_block
///     per_head(causal, everything)
///
/// Throws Error, saying where and what was expected. What describe() cuts short ("..., 40 in all", "212 pairs") is not
/// a pattern.
HEED_API Pattern parse(std::string_view text);

}  // namespace patterns
}  // namespace heed
