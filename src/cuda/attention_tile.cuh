#pragma once
/// What the general kernels share: a block of 4 warps, each warp with 8 rows of its own ("own": queries, or keys in the
/// pass that gathers dk and dv) against 32 rows at a time of the other side, one a lane.

#include "cuda/attention_score.cuh"

namespace heed::cuda {

constexpr int warps = 4;
constexpr int rows_per_warp = 8;
constexpr int own_rows = warps * rows_per_warp;  ///< of a block
constexpr int other_rows = 32;                   ///< of a step: one a lane
constexpr int dot_columns = 32;                  ///< of both sides in shared memory at a time
constexpr int lane_columns = 4;                  ///< columns of a result that a lane has
constexpr int out_columns = 32 * lane_columns;   ///< of a block; wider results take several blocks

template <class A>
struct alignas(16) Four {
    A x[4];
};

template <class A>
struct TileMemory {
    // 16 bytes more than the columns: the lanes' rows begin in different banks.
    static constexpr int pitch = dot_columns + 16 / static_cast<int>(sizeof(A)) * (sizeof(A) == 4 ? 1 : 2);
    alignas(16) A own[own_rows][pitch];
    alignas(16) A other[other_rows][pitch];
    alignas(16) A weight[2][warps][other_rows][rows_per_warp];
    /// Where each own row begins in up to two tensors; `no_row`: it is not read. Found once a block, because the
    /// division that finds a row's head takes longer than the row's products.
    std::int64_t own_at[2][own_rows];
};
constexpr std::int64_t no_row = INT64_MIN;

/// Element `column` of own row n of tensor x.
template <class A>
__device__ inline A own_element(const TileMemory<A>& memory, int which, const Tensor4& x, int n, std::int64_t column) {
    const std::int64_t at = memory.own_at[which][n];
    return at == no_row ? A{0} : load_as<A>(x.dtype, x.data, at + column * x.stride[3]);
}

/// sum[r] = own row r . this lane's other row, over `columns`. own(row, column) and other(row, column) read an element
/// of the block's rows, 0 outside the tensors.
template <class A, class Own, class Other>
__device__ void dot_products(TileMemory<A>& memory, std::int64_t columns, const Own& own, const Other& other,
                             A (&sum)[rows_per_warp]) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
    for (int r = 0; r < rows_per_warp; ++r) { sum[r] = 0; }
    for (std::int64_t begin = 0; begin < columns; begin += dot_columns) {
        __syncthreads();
        const std::int64_t column = begin + lane;
        // Unrolled, so that the loads are on their way together.
#pragma unroll
        for (int n = 0; n < own_rows / warps; ++n) {
            const int row = warp + n * warps;
            memory.own[row][lane] = column < columns ? own(row, column) : A{0};
        }
#pragma unroll
        for (int n = 0; n < other_rows / warps; ++n) {
            const int row = warp + n * warps;
            memory.other[row][lane] = column < columns ? other(row, column) : A{0};
        }
        __syncthreads();
#pragma unroll 4
        for (int c = 0; c < dot_columns; c += 4) {
            const Four<A> mine = *reinterpret_cast<const Four<A>*>(&memory.other[lane][c]);
#pragma unroll
            for (int r = 0; r < rows_per_warp; ++r) {
                const Four<A> theirs = *reinterpret_cast<const Four<A>*>(&memory.own[warp * rows_per_warp + r][c]);
#pragma unroll
                for (int n = 0; n < 4; ++n) { sum[r] += theirs.x[n] * mine.x[n]; }
            }
        }
    }
}

/// A number of each of the warp's rows, in the lanes of their numbers; read with of_row.
template <class X>
__device__ X of_row(X in_lane, int r) {
    return __shfl_sync(~0U, in_lane, r);
}

/// acc[r][m] += weight[r][n] * x(n, column m of the lane) over the 32 other rows n that lane r's `seen_in_lane` has a
/// bit for: what is hidden is not multiplied, as 0 * NaN is NaN.
template <class A, class Other>
__device__ void accumulate(const A (&weight)[other_rows][rows_per_warp], std::uint32_t seen_in_lane, const Other& x,
                           A (&acc)[rows_per_warp][lane_columns]) {
    std::uint32_t seen[rows_per_warp], any = 0, all = ~0U;
#pragma unroll
    for (int r = 0; r < rows_per_warp; ++r) {
        seen[r] = of_row(seen_in_lane, r);
        any |= seen[r];
        all &= seen[r];
    }
    // Rows in groups, whose loads are on their way together.
    constexpr int group = 4;
#pragma unroll 1
    for (int first = 0; first < other_rows; first += group) {
        if ((any >> first & ((1U << group) - 1)) == 0) { continue; }
        A value[group][lane_columns];
#pragma unroll
        for (int g = 0; g < group; ++g) {
#pragma unroll
            for (int m = 0; m < lane_columns; ++m) {
                value[g][m] = (any >> (first + g) & 1U) != 0 ? x(first + g, m) : A{0};
            }
        }
#pragma unroll
        for (int g = 0; g < group; ++g) {
            const int n = first + g;
            if ((all >> n & 1U) != 0) {
#pragma unroll
                for (int r = 0; r < rows_per_warp; ++r) {
#pragma unroll
                    for (int m = 0; m < lane_columns; ++m) { acc[r][m] += weight[n][r] * value[g][m]; }
                }
            } else {
#pragma unroll
                for (int r = 0; r < rows_per_warp; ++r) {
                    if ((seen[r] >> n & 1U) == 0) { continue; }
#pragma unroll
                    for (int m = 0; m < lane_columns; ++m) { acc[r][m] += weight[n][r] * value[g][m]; }
                }
            }
        }
    }
}

template <class A>
__device__ A warp_max(A x) {
    for (int apart = 16; apart > 0; apart /= 2) {
        const A other = __shfl_xor_sync(~0U, x, apart);
        x = x < other ? other : x;
    }
    return x;
}
/// The same order in every lane and every run.
template <class A>
__device__ A warp_sum(A x) {
    for (int apart = 16; apart > 0; apart /= 2) { x += __shfl_xor_sync(~0U, x, apart); }
    return x;
}

/// A block's place in a launch over entries, key/value heads, column parts and tiles of rows.
struct BlockPlace {
    std::int64_t entry, kv_head, part, tile;
};
__device__ inline BlockPlace block_place(const AttentionCall& c, std::int64_t parts, std::int64_t tiles,
                                         std::int64_t n) {
    BlockPlace place;
    place.tile = n % tiles;
    n /= tiles;
    place.part = n % parts;
    n /= parts;
    place.kv_head = n % c.kv_heads;
    place.entry = n / c.kv_heads;
    return place;
}

/// Row n of the queries of a key/value head: the heads of its group lie side by side, so that short sequences fill a
/// block and the rows of a block are near each other.
struct QueryRow {
    bool inside = false;  ///< of the entry's rows
    bool read = false;    ///< not past its length
    std::int64_t h = 0, i = 0;
};
__device__ inline QueryRow query_row(const AttentionCall& c, const Entry& s, std::int64_t kv_head, std::int64_t n) {
    QueryRow row;
    row.i = n / c.group;
    row.h = kv_head * c.group + n % c.group;
    row.inside = row.i < s.rows;
    row.read = row.i < s.queries;
    return row;
}

__device__ inline std::int64_t row_begin(const Tensor4& x, std::int64_t b, std::int64_t h, std::int64_t row) {
    return b * x.stride[0] + h * x.stride[1] + row * x.stride[2];
}
template <class A>
__device__ inline A element(const Tensor4& x, std::int64_t b, std::int64_t h, std::int64_t row, std::int64_t column) {
    return load_as<A>(x.dtype, x.data, b * x.stride[0] + h * x.stride[1] + row * x.stride[2] + column * x.stride[3]);
}
template <class A>
__device__ inline void put(const Tensor4& x, std::int64_t b, std::int64_t h, std::int64_t row, std::int64_t column,
                           A value) {
    store_as<A>(x.dtype, x.data, b * x.stride[0] + h * x.stride[1] + row * x.stride[2] + column * x.stride[3], value);
}

/// The rows of the other side that own rows [first, last] can meet; everything where positions are explicit.
struct Range {
    std::int64_t begin, end;
};
__device__ inline Range keys_met(const AttentionCall& c, const Entry& s, std::int64_t first, std::int64_t last) {
    Range range{0, s.keys};
    if (c.query_positions.data != nullptr || c.key_positions.data != nullptr) { return range; }
    if (c.left >= 0) { range.begin = max(range.begin, first + s.shift - c.left); }
    if (c.right >= 0) { range.end = min(range.end, last + s.shift + c.right + 1); }
    return range;
}
__device__ inline Range queries_met(const AttentionCall& c, const Entry& s, std::int64_t first, std::int64_t last) {
    Range range{0, s.queries};
    if (c.query_positions.data != nullptr || c.key_positions.data != nullptr) { return range; }
    if (c.right >= 0) { range.begin = max(range.begin, first - s.shift - c.right); }
    if (c.left >= 0) { range.end = min(range.end, last - s.shift + c.left + 1); }
    return range;
}

}  // namespace heed::cuda
