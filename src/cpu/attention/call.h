#pragma once
/// What the kernels of all instruction sets share: a call as plain data, and the split of its work. Code in here is
/// compiled once, for the baseline; isa/ includes this header and calls it, but instantiates nothing of it.

#include "base/pool.h"
#include "kernel/attention_problem.h"

#include <numbers>

namespace heed::cpu {

/// A tensor [b, h, row, column] as plain data; strides in elements, 0 along repeated axes.
struct Tensor4 {
    char* data = nullptr;
    DType dtype = DType::f32;
    int element_size = 4;
    std::int64_t b = 0, h = 0, row = 0, column = 0;
};

/// Positions of one entry lie within this of each other, so that their differences are 32-bit numbers.
constexpr std::int64_t farthest = std::int64_t{1} << 30;
constexpr int most_rows = 64;       ///< rows of a tile: four vectors of 16 lanes
constexpr int decode_rows = 8;      ///< at most so many rows have a kernel of their own
constexpr int most_task_tiles = 8;  ///< tiles of rows that a task of the forward pass has at most
constexpr std::int64_t most_tile_keys = 192;
constexpr std::int64_t pattern_keys = 64;  ///< a pattern is followed in squares of so many keys and rows
constexpr int most_runs = most_tile_keys / pattern_keys;
constexpr std::int64_t pattern_blocks = 8;  ///< blocks of keys that a pattern is asked about at a time
constexpr std::int64_t pattern_step = 16;   ///< what a square hides from all rows is left out in multiples of this

/// A lower bias, but for -infinity, counts as this one, which is still a number in powers of two: rows that see nothing
/// but the lowest float, as masks of some libraries have it, see all of it alike. Its product with log2(e) is exact, so
/// that a fused multiply-add takes nothing but 0 off it.
constexpr float least_bias = -0x1p127F;
constexpr float least_score = least_bias * std::numbers::log2e_v<float>;

/// Up to 64 query rows that share a key/value head. Lanes past `rows` repeat the last row.
struct RowTile {
    int rows = 0;
    int lanes = 16;                        ///< L
    int vectors = 0;                       ///< of L lanes
    bool visible = true;                   ///< some row has a key to see
    std::int64_t batch = 0, sequence = 0;  ///< index along B of the tensors; entry (or packed sequence)
    std::int64_t query_begin = 0;
    std::int32_t head[most_rows];
    std::int32_t index[most_rows];     ///< i
    std::int32_t position[most_rows];  ///< p_i, less Keys::position_base
    std::int32_t low[most_rows];       ///< a key at position x is in the window when low <= x <= high
    std::int32_t high[most_rows];
    float slope[most_rows];          ///< ALiBi, times log2(e)
    std::uint32_t plane[most_rows];  ///< b*H + h, for dropout
    /// Keys, by index, that some row (all rows) of vector n may see; exact where key positions are implicit.
    std::int32_t some_begin[most_rows / 4], some_end[most_rows / 4];
    std::int32_t all_begin[most_rows / 4], all_end[most_rows / 4];
    std::int32_t begin = 0, end = 0;  ///< union of the vectors' `some`

    int stride() const { return lanes * vectors; }
};

/// The address of row r of a tile.
inline __attribute__((always_inline)) char* row_address(const Tensor4& tensor, const RowTile& tile, std::int64_t r) {
    const std::int64_t row = tile.query_begin + tile.index[r];
    return tensor.data + (tile.batch * tensor.b + tile.head[r] * tensor.h + row * tensor.row) * tensor.element_size;
}

/// The keys of one entry.
struct Keys {
    std::int64_t begin = 0;  ///< first row along S
    std::int64_t count = 0;
    std::int64_t position_base = 0;
    bool explicit_positions = false;
};

/// One call, for every instruction set.
struct Call {
    const AttentionProblem* problem = nullptr;
    std::int64_t batch = 0, heads = 0, kv_heads = 0, group = 1, queries = 0;
    std::int64_t head_size = 0, value_size = 0;
    Tensor4 q, k, v, out, dout, dq, dk, dv, bias, allow, keep;
    const KvPages* pages = nullptr;  ///< k and v lie here instead
    bool byte_products = false;      ///< the CPU has them
    bool tiles_only = false;         ///< nothing but tiles, whatever suits an entry
    int threads = 1;                 ///< that share the call: no bit depends on it
    bool has_lse = false;
    float scale = 1;
    float factor = 1;       ///< scale * log2(e): scores in powers of two
    float cap = 0;          ///< softcap * log2(e)
    float inverse_cap = 0;  ///< scale / softcap
    bool alibi = false;
    bool drop = false;  ///< by generator
    std::uint64_t drop_seed = 0;
    std::uint32_t drop_offset = 0;
    std::uint32_t drop_below = 0;  ///< dropped where word <= drop_below
    float drop_factor = 1;         ///< 1 / (1 - p)
    bool pattern = false;
    bool sinks = false;
    std::int64_t tile_keys = 96;  ///< keys of a block
    bool dx_wanted = false;       ///< gradients are wanted that are made of the scores' before they are scaled
    bool dq_direct = false;       ///< the first part of dq is accumulated where dq goes
};

/// How one entry's forward work is cut up. What changes a bit of the result depends on the entry's own sizes alone, not
/// on the batch or the number of threads. How many tiles a task has changes none: tiles know nothing of each other.
struct Split {
    std::int64_t tiles = 0;  ///< row tiles of one key/value head
    std::int64_t tiles_per_task = 1;
    std::int64_t row_blocks = 0;  ///< tasks along the rows
    std::int64_t key_parts = 1;
    std::int64_t part_keys = 0;
    std::int64_t heads_per_tile = 1;  ///< short sequences: heads of the group share a tile
    std::int64_t rows_per_tile = 64;
    std::int64_t tile_rows = 64;  ///< most rows that a tile has

    std::int64_t tasks(std::int64_t kv_heads) const { return row_blocks * kv_heads * key_parts; }
};

/// Where each entry's tasks and partial results begin, over the whole batch.
struct ForwardPlan {
    struct Entry {
        std::int64_t first_task = 0;
        std::int64_t first_partial = 0;  ///< in floats
        std::int64_t first_merge = 0;
    };
    const Entry* entries = nullptr;  ///< [batch + 1]
    float* partials = nullptr;
    std::int64_t tasks = 0;
    std::int64_t tasks_per_entry = 0;  ///< where all entries are of one size, otherwise 0
    Split split;                       ///< of every entry, where they are
    std::int64_t merges = 0;           ///< tiles whose keys were split
    detail::Effort effort = detail::Effort::alone;

    /// The entry that a task (merge) belongs to.
    std::int64_t entry_of_task(std::int64_t batch, std::int64_t task) const;
    std::int64_t entry_of_merge(std::int64_t batch, std::int64_t merge) const;
    Split split_of(const Call& call, const Sequence& s) const;
};
/// Floats that one part of one split tile leaves behind: sums, largest and sum of its rows.
std::int64_t partial_floats(const Split& split, std::int64_t value_stride);
/// Memory comes from the pool's shared scratch and holds until the next plan.
ForwardPlan plan_forward(const Call& call, detail::Pool& pool, std::int64_t value_stride);

/// Short sequences, more of them than the nearer caches hold: the hardware, which fetches ahead within a page, learns
/// nothing in so few rows. Asking for the next head costs 4 % where it lies in the caches and gains 20 to 27 % where
/// not.
bool has_far_heads(const Call& call);

/// Are dot products of bf16 pairs no faster than products of floats on this CPU? Then it is quicker to widen them.
/// Intel's run on one of two pipes; AMD's as fast as those of floats. By the maker of the CPU.
bool pairs_are_slow();

/// So few for each thread that their order decides when the last one ends: the longest first. Two threads share a cache
/// and gain more from tasks of one head in a row.
inline __attribute__((always_inline)) bool has_few_tasks(std::int64_t tasks, int threads) {
    return threads > 2 && tasks < 16 * std::int64_t{threads};
}

Sequence sequence_of(const Call& call, std::int64_t b);

Call make_call(const AttentionProblem& problem);
Keys keys_of(const Call& call, const Sequence& s);
Split split_forward(const Call& call, const Sequence& s);
/// Lanes that waste least for so many rows: a vector half as wide where the rows fill no more of the full one.
int lanes_for(int rows, int widest);
/// A task of the forward pass: tiles [first, first + tiles) of key/value head g of entry b, over keys [key_begin,
/// key_end).
struct ForwardTask {
    Sequence s;
    Split split;
    std::int64_t b = 0, g = 0, part = 0, first = 0, tiles = 0, key_begin = 0, key_end = 0;
};

/// A head of entry b: a query head, or one of keys and values.
struct EntryHead {
    const Sequence& s;
    const Keys& keys;
    std::int64_t b, head;
};
/// Tile number t of a key/value head.
void fill_rows(const Call& call, const EntryHead& of, const Split& split, std::int64_t t, int widest_lanes,
               RowTile& tile);
/// A tile of chosen rows of a query head; those past the entry's queries stand as its first row.
void fill_listed_rows(const Call& call, const EntryHead& of, const std::int64_t* rows, std::int64_t count,
                      int widest_lanes, RowTile& tile);

/// Key positions of [begin, begin + count), less the base, and their range.
void fill_key_positions(const Call& call, const Sequence& s, const Keys& keys, std::int64_t begin, std::int64_t count,
                        std::int32_t* positions, std::int32_t& least, std::int32_t& most);

/// Keys of a block [begin, end) that a tile sees: all of them, or some.
struct PatternRun {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    Cover cover = Cover::all;
};
/// What the pattern leaves of `count` keys for a tile, in pieces of pattern_keys or less; neighbours that are seen as a
/// whole are one piece, so that products are as long as without a pattern. Returns how many; at most most_runs.
int pattern_runs(const Call& call, const Sequence& s, const Keys& keys, const RowTile& tile, std::int64_t begin,
                 std::int64_t count, PatternRun* runs);
/// May the tile see any of `count` keys? One question for many keys, so that what is far apart costs little to pass by.
bool pattern_sees(const Call& call, const Keys& keys, const RowTile& tile, std::int64_t begin, std::int64_t count);
/// The runs of a tile in several blocks of keys. Asked for tile by tile: a pattern remembers what it drew last.
struct PatternWork {
    int count[pattern_blocks];
    PatternRun runs[pattern_blocks][most_runs];
};
/// Fills in the blocks of keys [begin, begin + count), at most pattern_blocks; false: the tile sees none of them.
bool pattern_work(const Call& call, const Sequence& s, const Keys& keys, const RowTile& tile, std::int64_t begin,
                  std::int64_t count, PatternWork& work);
/// allowed[n] = 0 where the pattern hides key begin + n from the tile's row, otherwise 1.
void pattern_row(const Call& call, const RowTile& tile, const Keys& keys, int row, std::int64_t begin,
                 std::int64_t count, const std::int32_t* positions, std::uint8_t* allowed);

double sink_of(const Call& call, std::int64_t head);
/// lse of a row of entry `batch`, counted along T; of row number `row` of a tile.
void put_lse(const Call& call, std::int64_t batch, std::int64_t head, std::int64_t row, double lse);
void put_lse(const Call& call, const RowTile& tile, int row, double lse);
/// Why the tiled kernels cannot take the problem, on a CPU that has their instruction set; null where they can.
const char* declines(const AttentionProblem& problem);

/// Output 0 and lse of nothing for rows that are past their length.
void clear_all_rows(const Call& call);
/// The rows of an output; an extent of 1 keeps its stride.
Tensor4 rows_of(const MutableView& view);
/// Rows [begin, end) of the first `columns` columns = 0, in every head.
void clear_rows_of_heads(const Tensor4& tensor, std::int64_t batch, std::int64_t heads, std::int64_t begin,
                         std::int64_t end, std::int64_t columns);

/// Bytes of the second-level cache of a core.
std::size_t level2_bytes();

}  // namespace heed::cpu
