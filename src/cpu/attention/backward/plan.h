#pragma once
#include "cpu/attention/call.h"

/// How the backward pass is cut up, and its ordered sums. Compiled once, for the baseline, like attention_call.h.

namespace heed::cpu {

/// The gradients of one entry and key/value head come from tasks that each own a range of keys: dk and dv are complete
/// there, dq is a part that is summed in order afterwards. Depends on the entry's own sizes alone.
struct BackwardSplit {
    static constexpr std::int64_t most_chunks = 4;
    static constexpr std::int64_t most_super_tiles = 16;  ///< tiles of keys in super_keys
    std::int64_t chunks = 1;
    std::int64_t chunk_keys = 0;
    std::int64_t super_keys = 0;  ///< keys whose k, v, dk and dv share the second-level cache; with a pattern, more
    Split rows;                   ///< row tiles
};

/// Where a chunk's part of dq is accumulated: row i of head h of the group at data + h * head + i * row.
struct DqPart {
    float* data;
    std::int64_t head, row;
};

/// The deltas of one tile of rows, once some task has computed them.
struct DeltaSlot {
    std::int32_t ready;
    float delta[most_rows];

    __attribute__((always_inline)) bool is_ready() const { return __atomic_load_n(&ready, __ATOMIC_ACQUIRE) != 0; }
};

struct BackwardPlan {
    std::int64_t first_entry = 0,
                 entries = 0;  ///< this wave: batch entries whose parts of dq fit the workspace together
    std::int64_t tasks = 0;
    bool loop_entries = false, loop_heads = false,
         loop_chunks = false;  ///< axes that a task runs in order (shared dbias)
    std::int64_t most_chunks = 1;
    float* dq_parts = nullptr;      ///< entry, head, chunk, row, column, see dq_part()
    DeltaSlot* deltas = nullptr;    ///< entry, key/value head, tile; entry e starts at delta_begin(e)
    bool* dq_filled = nullptr;      ///< [as deltas][most_chunks]: parts of dq that hold something, chunk by chunk
    double* slope_parts = nullptr;  ///< [entries][heads][most_chunks]
    double* sink_parts = nullptr;   ///< [entries][heads]
    double operations = 0;
    bool longest_first = false;
};

BackwardSplit split_backward(const Call& call, const Sequence& s, std::int64_t bytes_per_key);
/// The wave that starts at `first`; tasks cover its entries, heads and chunks.
BackwardPlan plan_backward(const Call& call, detail::Pool& pool, std::int64_t first, std::int64_t bytes_per_key);
/// The part of dq that chunk n of several of key/value head g of entry b has: dq itself, where it can be, or a place of
/// its own.
DqPart dq_part(const Call& call, const BackwardPlan& plan, const Sequence& s, const BackwardSplit& split,
               std::int64_t b, std::int64_t g, std::int64_t n, std::int64_t bytes_per_key);

/// Keys of chunk n against all rows of the query heads that share key/value head g of entry b.
struct BackwardTask {
    const Sequence& s;
    const BackwardSplit& split;
    std::int64_t b, g, n;
};

/// Tiles of all entries of the wave before b.
std::int64_t delta_begin(const Call& call, const BackwardPlan& plan, std::int64_t b);

/// Which of its key/value head's tiles of rows holds row i of a head.
inline __attribute__((always_inline)) std::int64_t tile_of_row(const Call& call, const Split& rows, std::int64_t h,
                                                               std::int64_t i) {
    const std::int64_t m = h % call.group;
    return rows.heads_per_tile > 1 ? m / rows.heads_per_tile : i / rows.rows_per_tile * call.group + m;
}

/// Runs visit(b, g, chunk) for a task, in order.
template <class Visit>
inline __attribute__((always_inline)) void for_each_chunk(const Call& call, const BackwardPlan& plan, std::int64_t task,
                                                          Visit visit) {
    const std::int64_t chunks = plan.loop_chunks ? 1 : plan.most_chunks;
    const std::int64_t heads = plan.loop_heads ? 1 : call.kv_heads;
    // Chunk after chunk where threads have few tasks each: under a causal mask the first has the most to do.
    const std::int64_t tasks_of_chunk = plan.tasks / chunks;
    const std::int64_t chunk = plan.longest_first ? task / tasks_of_chunk : task % chunks;
    const std::int64_t head_task = plan.longest_first ? task % tasks_of_chunk : task / chunks;
    const std::int64_t g = head_task % heads;
    const std::int64_t entry = head_task / heads;
    for (std::int64_t b = plan.loop_entries ? 0 : entry; b < (plan.loop_entries ? plan.entries : entry + 1); ++b) {
        for (std::int64_t head = plan.loop_heads ? 0 : g; head < (plan.loop_heads ? call.kv_heads : g + 1); ++head) {
            for (std::int64_t c = plan.loop_chunks ? 0 : chunk; c < (plan.loop_chunks ? plan.most_chunks : chunk + 1);
                 ++c) {
                visit(plan.first_entry + b, head, c);
            }
        }
    }
}

/// lse * log2(e) of a tile's rows, +infinity for rows that see nothing and for those past the last, and what of it a
/// float does not hold.
void row_lses(const Call& call, const RowTile& tile, float* lse, float* rest);
float row_dlse(const Call& call, const RowTile& tile, int row);

/// dbias += row over keys [begin, begin + count) of the tile's row.
void add_dbias(const Call& call, const RowTile& tile, int row, std::int64_t begin, std::int64_t count,
               const float* add);
/// Sets dbias, dsinks and dalibi_slopes to 0.
void clear_reduced(const Call& call);
/// Adds a wave's parts, in order.
void add_reduced(const Call& call, const BackwardPlan& plan);
/// 0 for the rows of dq, dk and dv past their lengths.
void clear_gradient_rows(const Call& call);

}  // namespace heed::cpu
