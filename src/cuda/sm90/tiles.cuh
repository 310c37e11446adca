#pragma once
/// What the kernels for Hopper share: which tile of work comes when, which keys it meets, packed fragments.

#include "cuda/attention_score.cuh"
#include "cuda/sm90/ptx.cuh"
#include "cuda/sm90/wgmma.cuh"

namespace heed::cuda::sm90 {

/// The order in which blocks take tiles of rows. Neighbours share keys and values in the second-level cache: `width`
/// heads at a time, whose tiles come with the longest first where lengths differ.
struct TileOrder {
    int rows_tiles = 1;  ///< tiles of rows in a head
    int planes = 1;      ///< entries * heads
    int width = 1;
    bool last_first = false;
    int total() const { return rows_tiles * planes; }
};

struct TileNumber {
    int plane, rows;
};
__device__ inline TileNumber tile_number(const TileOrder& order, int n) {
    const int in_group = order.width * order.rows_tiles;
    const int group = n / in_group;
    const int rest = n - group * in_group;
    const int left = order.planes - group * order.width;
    const int width = left < order.width ? left : order.width;
    const int rows = rest / width;
    return {group * order.width + rest - rows * width, order.last_first ? order.rows_tiles - 1 - rows : rows};
}

/// A tile of queries and the tiles of keys that it meets, taken from the last to the first: those at the right edge are
/// masked, then come whole ones, then those at the left edge of a window. Made by the warp that copies and read by the
/// others from shared memory: registers are scarce.
struct Work {
    int tile;
    int entry, batch, head, kv_head;
    int query_begin, queries, rows, shift;  ///< of the entry, see heed::Sequence
    int key_begin, keys;
    int first;                 ///< row of the entry
    int tile_begin, tile_end;  ///< tiles of keys
    int whole_end;             ///< from here on masked at the right
    int whole_begin;           ///< before this masked at the left
    __device__ bool nothing() const { return tile_begin >= tile_end; }
};

/// How far a query sees: beyond every key is the same as everywhere, and keeps sums inside an int.
__device__ inline int reach_of(std::int64_t reach) {
    return reach < 0 ? -1 : static_cast<int>(min(reach, std::int64_t{1} << 29));
}

template <int row_tile, int key_tile>
__device__ inline void find_work(const AttentionCall& c, const TileOrder& order, int tile, Work& work) {
    const TileNumber n = tile_number(order, tile);
    const int entry = n.plane / static_cast<int>(c.heads);
    work.tile = tile;
    work.entry = entry;
    work.head = n.plane - entry * static_cast<int>(c.heads);
    work.kv_head = work.head / static_cast<int>(c.group);
    const Entry s = entry_of(c, entry);
    work.batch = static_cast<int>(s.batch);
    work.query_begin = static_cast<int>(s.query_begin);
    work.rows = static_cast<int>(s.rows);
    work.key_begin = static_cast<int>(s.key_begin);
    const int queries = work.queries = static_cast<int>(s.queries);
    const int keys = work.keys = static_cast<int>(s.keys);
    const int shift = work.shift = static_cast<int>(s.shift);
    const int first = work.first = n.rows * row_tile;
    const int last = min(first + row_tile, queries) - 1;
    const int right = reach_of(c.right), left = reach_of(c.left);
    const int seen_end = right < 0 ? keys : min(keys, last + shift + right + 1);
    const int whole = right < 0 ? keys : min(keys, first + shift + right + 1);
    work.tile_end = first > last ? 0 : (max(seen_end, 0) + key_tile - 1) / key_tile;
    work.whole_end = max(whole, 0) / key_tile;
    work.tile_begin = left < 0 ? 0 : max(first + shift - left, 0) / key_tile;
    work.whole_begin = left < 0 ? 0 : (max(last + shift - left, 0) + key_tile - 1) / key_tile;
}

/// Keys [begin, end) that query i of an entry sees.
struct Seen {
    int begin, end;
};
__device__ inline Seen seen_by(const AttentionCall& c, const Work& work, int i) {
    Seen seen{0, work.keys};
    const int right = reach_of(c.right), left = reach_of(c.left), p = i + work.shift;
    if (right >= 0) { seen.end = min(seen.end, max(p + right + 1, 0)); }
    if (left >= 0) { seen.begin = max(p - left, 0); }
    return seen;
}

/// Two numbers in one register, the first in the lower half.
template <Half type>
__device__ inline std::uint32_t packed(float low, float high) {
    std::uint32_t pair;
    if constexpr (type == Half::bf16) {
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    } else {
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    }
    return pair;
}

}  // namespace heed::cuda::sm90
