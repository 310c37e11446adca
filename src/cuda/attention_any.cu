/// Attention on the device with every option, any type, size and stride: the oracle there, and what runs when no faster
/// kernel takes a call. Blocks share nothing, so results depend on nothing but the row's own sequence.

#include "cuda/attention_any.h"
#include "cuda/attention_tile.cuh"

#include <algorithm>
#include <cstring>

namespace heed::cuda {
namespace {

template <class A>
__global__ void __launch_bounds__(32 * warps)
    attend_rows(const __grid_constant__ AttentionCall c, std::int64_t tiles, std::int64_t parts) {
    __shared__ TileMemory<A> memory;
    const BlockPlace place = block_place(c, parts, tiles, blockIdx.x);
    const Entry s = entry_of(c, place.entry);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const std::int64_t first_row = place.tile * own_rows;
    if (first_row >= s.rows * c.group) { return; }
    const std::int64_t first_column = place.part * out_columns + lane;
    const A none = static_cast<A>(minus_infinity);

    // Of row r, in lane r: the loop over rows below is not unrolled, as its body is every option there is.
    A largest = none, sum = 0;
    const QueryRow my_row = query_row(c, s, place.kv_head, first_row + warp * rows_per_warp + lane % rows_per_warp);
    const std::int64_t my_position = my_row.read ? query_position(c, s, my_row.i) : 0;
    A acc[rows_per_warp][lane_columns];
#pragma unroll
    for (int r = 0; r < rows_per_warp; ++r) {
#pragma unroll
        for (int m = 0; m < lane_columns; ++m) { acc[r][m] = 0; }
    }

    if (threadIdx.x < own_rows) {
        const QueryRow row = query_row(c, s, place.kv_head, first_row + threadIdx.x);
        memory.own_at[0][threadIdx.x] = row.read ? row_begin(c.q, s.batch, row.h, s.query_begin + row.i) : no_row;
    }
    const std::int64_t k_begin = row_begin(c.k, s.batch, place.kv_head, s.key_begin);
    const std::int64_t v_begin = row_begin(c.v, s.batch, place.kv_head, s.key_begin);
    const std::int64_t last_row = min(first_row + own_rows, s.queries * c.group) - 1;
    const Range range = keys_met(c, s, first_row / c.group, last_row / c.group);
    for (std::int64_t key = last_row >= first_row ? range.begin : range.end; key < range.end; key += other_rows) {
        A x[rows_per_warp];
        dot_products(
            memory, c.head_size, [&](int n, std::int64_t column) { return own_element<A>(memory, 0, c.q, n, column); },
            [&](int n, std::int64_t column) {
                return key + n < range.end ? load_as<A>(c.k.dtype, c.k.data,
                                                        k_begin + (key + n) * c.k.stride[2] + column * c.k.stride[3])
                                           : A{0};
            },
            x);
        const std::int64_t j = key + lane;
        const std::int64_t at = j < range.end ? key_position(c, s, j) : 0;
        A* const mine = memory.weight[0][warp][lane];
#pragma unroll
        for (int r = 0; r < rows_per_warp; ++r) { mine[r] = x[r]; }
        std::uint32_t seen = 0;
        A rescale = 1;
#pragma unroll 1
        for (int r = 0; r < rows_per_warp; ++r) {
            const Pair pair{of_row(my_row.h, r), of_row(my_row.i, r), j, of_row(my_position, r), at};
            const bool read = of_row(static_cast<int>(my_row.read), r) != 0;
            Score<A> score;
            if (read && j < range.end) { score = score_of<A>(c, s, pair, mine[r]); }
            const std::uint32_t seen_of_row = __ballot_sync(~0U, score.visible);
            A weight = 0;
            if (seen_of_row != 0) {
                const A before = of_row(largest, r);
                const A next = max(before, warp_max(score.visible ? score.x : none));
                const A factor = next == none ? A{1} : exp(before - next);
                // Of scores of -infinity alone nothing comes; NaN among them stays NaN.
                if (score.visible) { weight = next == none && score.x == none ? A{0} : exp(score.x - next); }
                const A added = warp_sum(weight);
                if (lane == r) {
                    largest = next;
                    rescale = factor;
                    sum = sum * factor + added;
                }
                if (c.drops && score.visible) { weight *= kept<A>(c, s, pair); }
            }
            if (lane == r) { seen = seen_of_row; }
            mine[r] = weight;
        }
#pragma unroll
        for (int r = 0; r < rows_per_warp; ++r) {
            const A factor = of_row(rescale, r);
#pragma unroll
            for (int m = 0; m < lane_columns; ++m) { acc[r][m] *= factor; }
        }
        __syncwarp();
        accumulate(
            memory.weight[0][warp], seen,
            [&](int n, int m) {
                const std::int64_t column = first_column + 32 * m;
                return column < c.value_size ? load_as<A>(c.v.dtype, c.v.data,
                                                          v_begin + (key + n) * c.v.stride[2] + column * c.v.stride[3])
                                             : A{0};
            },
            acc);
        __syncwarp();
    }

    A lse = none, factor = 0;
    if (my_row.read) {
        A top = largest;
        factor = 1;
        if (c.sinks.data != nullptr) {
            const A sink = load_as<A>(c.sinks.dtype, c.sinks.data, my_row.h * c.sinks.stride[0]);
            const A next = sink > top || sink != sink ? sink : top;
            factor = top == none ? A{0} : exp(top - next);
            if (next != none) { sum = (top == none ? sum : sum * factor) + exp(sink - next); }
            top = next;
        }
        // NaN in the sum must reach the row even where the largest of the other scores is -infinity.
        if (top != none || sum != sum) {
            factor /= sum;
            lse = top + log(sum);
        } else {
            factor = 0;
        }
    }
    const int inside = my_row.inside ? 1 : 0;
    if (c.lse.data != nullptr && lane < rows_per_warp && inside != 0 && place.part == 0) {
        put<A>(c.lse, s.batch, my_row.h, s.query_begin + my_row.i, 0, lse);
    }
    if (c.out.data == nullptr) { return; }
#pragma unroll
    for (int r = 0; r < rows_per_warp; ++r) {
        const A factor_of_row = of_row(factor, r);
        const std::int64_t h = of_row(my_row.h, r), i = of_row(my_row.i, r);
        if (of_row(inside, r) == 0) { continue; }
#pragma unroll
        for (int m = 0; m < lane_columns; ++m) {
            const std::int64_t column = first_column + 32 * m;
            if (column >= c.value_size) { continue; }
            put<A>(c.out, s.batch, h, s.query_begin + i, column,
                   factor_of_row == A{0} ? A{0} : acc[r][m] * factor_of_row);
        }
    }
}

/// Rows behind the last packed sequence.
__global__ void clear_behind(const __grid_constant__ AttentionCall c, Tensor4 x, Tensor4 cumulative, std::int64_t heads,
                             std::int64_t rows, std::int64_t columns, double value) {
    const std::int64_t begin = load_integer(cumulative.dtype, cumulative.data, c.entries * cumulative.stride[0]);
    const std::int64_t row = (begin < 0 ? 0 : begin) + static_cast<std::int64_t>(blockIdx.x);
    if (row >= rows) { return; }
    for (std::int64_t n = threadIdx.x; n < heads * columns; n += blockDim.x) {
        put<double>(x, 0, n / columns, row, n % columns, value);
    }
}

template <int size>
struct Payload {
    static constexpr int bytes = size;
    alignas(16) unsigned char data[bytes];
};
template <int size>
__global__ void write_payload(unsigned char* to, const __grid_constant__ Payload<size> payload, int bytes) {
    const auto thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    const int whole = reinterpret_cast<std::uintptr_t>(to) % 16 == 0 ? bytes / 16 : 0;
    for (int n = thread; n < whole; n += threads) {
        reinterpret_cast<uint4*>(to)[n] = reinterpret_cast<const uint4*>(payload.data)[n];
    }
    for (int n = 16 * whole + thread; n < bytes; n += threads) { to[n] = payload.data[n]; }
}
template <int size>
void write_part(cudaStream_t stream, unsigned char* to, const unsigned char* from, std::int64_t bytes) {
    Payload<size> payload;
    std::memcpy(payload.data, from, static_cast<std::size_t>(bytes));
    write_payload<<<1, 256, 0, stream>>>(to, payload, static_cast<int>(bytes));
}

template <class A>
void launch(cudaStream_t stream, const AttentionCall& c) {
    const std::int64_t tiles = (c.queries * c.group + own_rows - 1) / own_rows;
    const std::int64_t parts = c.out.data == nullptr ? 1 : (c.value_size + out_columns - 1) / out_columns;
    const std::int64_t blocks = tiles * (parts < 1 ? 1 : parts) * c.kv_heads * c.entries;
    if (blocks > 0) {
        attend_rows<A><<<static_cast<unsigned>(blocks), 32 * warps, 0, stream>>>(c, tiles, parts < 1 ? 1 : parts);
    }
}

}  // namespace

void launch_clear_behind(void* stream, const AttentionCall& c, const Tensor4& x, bool of_keys, std::int64_t columns,
                         double value) {
    if (!c.packed || x.data == nullptr) { return; }
    const std::int64_t rows = of_keys ? c.keys : c.queries;
    if (rows == 0) { return; }
    clear_behind<<<static_cast<unsigned>(rows), 128, 0, static_cast<cudaStream_t>(stream)>>>(
        c, x, of_keys ? c.cu_keys : c.cu_queries, of_keys ? c.kv_heads : c.heads, rows, columns, value);
}

void launch_attention(void* stream, const AttentionCall& call, bool wide) {
    const auto queue = static_cast<cudaStream_t>(stream);
    launch_clear_behind(stream, call, call.out, false, call.value_size, 0);
    launch_clear_behind(stream, call, call.lse, false, 1, minus_infinity);
    if (wide) {
        launch<double>(queue, call);
    } else {
        launch<float>(queue, call);
    }
}

void launch_upload(void* stream, void* to, const void* from, std::int64_t bytes) {
    // Lengths and slopes are short, tables of pages long; a kernel's parameters have room for 32,764 bytes.
    constexpr int few = 3840, many = 32256;
    const auto queue = static_cast<cudaStream_t>(stream);
    auto* target = static_cast<unsigned char*>(to);
    const auto* source = static_cast<const unsigned char*>(from);
    for (; bytes > few; bytes -= many, target += many, source += many) {
        write_part<many>(queue, target, source, std::min<std::int64_t>(bytes, many));
    }
    if (bytes > 0) { write_part<few>(queue, target, source, bytes); }
}

}  // namespace heed::cuda
