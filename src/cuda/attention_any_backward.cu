/// The backward pass with every option: three sweeps, each of which owns what it writes, so that no order of blocks can
/// change a bit. With P = exp(x - lse), of <heed/attention.h>:
///
///     delta_i = sum_e dout_ie out_ie - dlse_i
///     dx_ij   = P_ij (r keep_ij dout_i . v_j - delta_i)            the gradient of step 3's sum, and of the bias
///     dq_i    = scale sum_j dx_ij cap'_ij k_j                      own rows: queries
///     dk_j    = scale sum_i dx_ij cap'_ij q_i                      own rows: keys
///     dv_j    = sum_i r keep_ij P_ij dout_i

#include "cuda/attention_any.h"
#include "cuda/attention_tile.cuh"

namespace heed::cuda {

namespace {

__device__ inline std::int64_t row_number(const AttentionCall& c, const Entry& s, std::int64_t h, std::int64_t i) {
    return (s.number * c.heads + h) * c.row_pitch + i;
}

/// delta of every row, and the row's part of the gradient of its sink. One warp a row.
template <class A>
__global__ void row_deltas(const __grid_constant__ AttentionCall c) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const std::int64_t n = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
    const std::int64_t i = n % c.queries;
    const std::int64_t h = n / c.queries % c.heads;
    const std::int64_t b = n / c.queries / c.heads;
    if (b >= c.entries) { return; }
    const Entry s = entry_of(c, b);
    A delta = 0, dsink = 0;
    if (i < s.queries) {
        const std::int64_t t = s.query_begin + i;
        const A lse = element<A>(c.lse, s.batch, h, t, 0);
        if (lse != static_cast<A>(minus_infinity)) {
            for (std::int64_t e = lane; e < c.value_size; e += 32) {
                // A row that saw its sink alone has out = 0 and passes no gradient, whatever dout holds there.
                const A out = element<A>(c.out, s.batch, h, t, e);
                if (out != A{0}) { delta += element<A>(c.dout, s.batch, h, t, e) * out; }
            }
            delta = warp_sum(delta);
            if (c.dlse.data != nullptr) { delta -= element<A>(c.dlse, s.batch, h, t, 0); }
            if (c.row_dsink != nullptr) {
                dsink = -delta * exp(load_as<A>(c.sinks.dtype, c.sinks.data, h * c.sinks.stride[0]) - lse);
            }
        }
    }
    if (lane == 0) {
        static_cast<A*>(c.delta)[row_number(c, s, h, i)] = delta;
        if (c.row_dsink != nullptr) { static_cast<A*>(c.row_dsink)[row_number(c, s, h, i)] = dsink; }
    }
}

/// Weight and gradient of one pair.
template <class A>
struct Gradient {
    bool visible = false;
    A weight = 0;  ///< after dropout: what v was multiplied by
    A dx = 0;      ///< of the sum of step 3
    A ddot = 0;    ///< of q . k
    A distance = 0;
};
template <class A>
__device__ inline Gradient<A> gradient_of(const AttentionCall& c, const Entry& s, const Pair& pair, A dot, A dout_v,
                                          A lse, A delta) {
    Gradient<A> gradient;
    const Score<A> score = score_of<A>(c, s, pair, dot);
    if (!score.visible || lse == static_cast<A>(minus_infinity)) { return gradient; }
    const A weight = exp(score.x - lse);
    const A keep = c.drops ? kept<A>(c, s, pair) : A{1};
    gradient.visible = true;
    gradient.weight = keep * weight;
    gradient.dx = weight * (keep * dout_v - delta);
    gradient.ddot = static_cast<A>(c.scale) * gradient.dx * score.slope_of_cap;
    gradient.distance = score.distance;
    return gradient;
}

/// What a sweep's own rows are multiplied with.
struct Side {
    std::int64_t head_size, value_size;
    const Tensor4 *own_head, *other_head, *own_value, *other_value;
};

/// q . k and dout . v of the lane's row with each of the warp's. `own` and `other` give the reader of a tensor of their
/// side; which tensors those are follows from the side.
template <class A, class Own, class Other>
__device__ void scores(TileMemory<A>& memory, const Side& side, const Own& own, const Other& other, A* dot, A* dout_v) {
    A sum[rows_per_warp];
    dot_products(memory, side.head_size, own(*side.own_head), other(*side.other_head), sum);
#pragma unroll
    for (int r = 0; r < rows_per_warp; ++r) { dot[r] = sum[r]; }
    dot_products(memory, side.value_size, own(*side.own_value), other(*side.other_value), sum);
#pragma unroll
    for (int r = 0; r < rows_per_warp; ++r) { dout_v[r] = sum[r]; }
}

template <class A>
__device__ void gradients_of_queries(const AttentionCall& c, TileMemory<A>& memory, const BlockPlace& place) {
    const Entry s = entry_of(c, place.entry);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const std::int64_t first_row = place.tile * own_rows;
    if (first_row >= s.rows * c.group) { return; }
    if (c.queries_flag != nullptr) {
        bool flagged = false;
        for (std::int64_t h = 0; h < c.group; ++h) {
            const std::int64_t plane = place.entry * c.heads + place.kv_head * c.group + h;
            const std::int64_t last = min(first_row + own_rows, s.rows * c.group) - 1;
            for (std::int64_t tile = first_row / c.group / 64; tile <= last / c.group / 64; ++tile) {
                flagged = flagged || c.queries_flag[plane * c.query_flags + tile] != 0;
            }
        }
        if (!flagged) { return; }
    }
    const std::int64_t first_column = place.part * out_columns + lane;

    // Of row r, in lane r.
    const QueryRow my_row = query_row(c, s, place.kv_head, first_row + warp * rows_per_warp + lane % rows_per_warp);
    const std::int64_t my_position = my_row.read ? query_position(c, s, my_row.i) : 0;
    const A my_lse = my_row.read ? element<A>(c.lse, s.batch, my_row.h, s.query_begin + my_row.i, 0)
                                 : static_cast<A>(minus_infinity);
    const A my_delta = my_row.read ? static_cast<const A*>(c.delta)[row_number(c, s, my_row.h, my_row.i)] : A{0};
    A dslope = 0;
    A acc[rows_per_warp][lane_columns];
#pragma unroll
    for (int r = 0; r < rows_per_warp; ++r) {
#pragma unroll
        for (int m = 0; m < lane_columns; ++m) { acc[r][m] = 0; }
    }
    if (threadIdx.x < own_rows) {
        const QueryRow row = query_row(c, s, place.kv_head, first_row + threadIdx.x);
        const std::int64_t t = s.query_begin + row.i;
        memory.own_at[0][threadIdx.x] = row.read ? row_begin(c.q, s.batch, row.h, t) : no_row;
        memory.own_at[1][threadIdx.x] = row.read ? row_begin(c.dout, s.batch, row.h, t) : no_row;
    }
    const std::int64_t last_row = min(first_row + own_rows, s.queries * c.group) - 1;
    const Range range = keys_met(c, s, first_row / c.group, last_row / c.group);
    for (std::int64_t key = last_row >= first_row ? range.begin : range.end; key < range.end; key += other_rows) {
        const auto own = [&](const Tensor4& x) {
            return [&](int n, std::int64_t column) { return own_element<A>(memory, &x == &c.q ? 0 : 1, x, n, column); };
        };
        const auto other = [&](const Tensor4& x) {
            return [&](int n, std::int64_t column) {
                return key + n < range.end ? element<A>(x, s.batch, place.kv_head, s.key_begin + key + n, column)
                                           : A{0};
            };
        };
        A* const ddot = memory.weight[0][warp][lane];
        A* const dout_v = memory.weight[1][warp][lane];
        scores(memory, Side{c.head_size, c.value_size, &c.q, &c.k, &c.dout, &c.v}, own, other, ddot, dout_v);
        const std::int64_t j = key + lane;
        const std::int64_t at = j < range.end ? key_position(c, s, j) : 0;
        std::uint32_t seen = 0;
#pragma unroll 1
        for (int r = 0; r < rows_per_warp; ++r) {
            const Pair pair{of_row(my_row.h, r), of_row(my_row.i, r), j, of_row(my_position, r), at};
            const bool read = of_row(static_cast<int>(my_row.read), r) != 0;
            const A lse = of_row(my_lse, r), delta = of_row(my_delta, r);
            Gradient<A> gradient;
            if (read && j < range.end) { gradient = gradient_of<A>(c, s, pair, ddot[r], dout_v[r], lse, delta); }
            const std::uint32_t seen_of_row = __ballot_sync(~0U, gradient.visible);
            if (lane == r) { seen = seen_of_row; }
            if (c.row_dslope != nullptr) {
                const A added = warp_sum(gradient.visible ? -gradient.dx * gradient.distance : A{0});
                if (lane == r) { dslope += added; }
            }
            ddot[r] = gradient.ddot;
        }
        __syncwarp();
        accumulate(
            memory.weight[0][warp], seen,
            [&](int n, int m) {
                const std::int64_t column = first_column + 32 * m;
                return column < c.head_size ? element<A>(c.k, s.batch, place.kv_head, s.key_begin + key + n, column)
                                            : A{0};
            },
            acc);
        __syncwarp();
    }
    if (c.row_dslope != nullptr && lane < rows_per_warp && my_row.inside && place.part == 0) {
        static_cast<A*>(c.row_dslope)[row_number(c, s, my_row.h, my_row.i)] = dslope;
    }
    const int inside = my_row.inside ? 1 : 0;
#pragma unroll
    for (int r = 0; r < rows_per_warp; ++r) {
        const std::int64_t h = of_row(my_row.h, r), i = of_row(my_row.i, r);
        if (of_row(inside, r) == 0) { continue; }
#pragma unroll
        for (int m = 0; m < lane_columns; ++m) {
            const std::int64_t column = first_column + 32 * m;
            if (column < c.head_size) { put<A>(c.dq, s.batch, h, s.query_begin + i, column, acc[r][m]); }
        }
    }
}

template <class A>
__device__ void gradients_of_keys(const AttentionCall& c, TileMemory<A>& memory, const BlockPlace& place) {
    const Entry s = entry_of(c, place.entry);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const std::int64_t first_key = place.tile * own_rows;
    if (first_key >= s.key_rows) { return; }
    if (c.keys_flag != nullptr &&
        c.keys_flag[(place.entry * c.kv_heads + place.kv_head) * c.key_flags + first_key / 64] == 0) {
        return;
    }
    const std::int64_t first_column = place.part * out_columns + lane;
    const std::int64_t own_key = first_key + warp * rows_per_warp;

    A dk[rows_per_warp][lane_columns], dv[rows_per_warp][lane_columns];
    const std::int64_t my_key = own_key + lane % rows_per_warp;
    const std::int64_t my_position = my_key < s.keys ? key_position(c, s, my_key) : 0;
#pragma unroll
    for (int r = 0; r < rows_per_warp; ++r) {
#pragma unroll
        for (int m = 0; m < lane_columns; ++m) { dk[r][m] = dv[r][m] = 0; }
    }
    const std::int64_t last_key = min(first_key + own_rows, s.keys) - 1;
    const Range range = queries_met(c, s, first_key, last_key);
    const bool any = last_key >= first_key && range.begin < range.end;
    // Queries of all heads of the group, head after head.
    const std::int64_t steps = any ? (range.end - range.begin + other_rows - 1) / other_rows : 0;
    for (std::int64_t step = 0; step < steps * c.group; ++step) {
        const std::int64_t h = place.kv_head * c.group + step / steps;
        const std::int64_t query = range.begin + step % steps * other_rows;
        const auto own = [&](const Tensor4& x) {
            return [&](int n, std::int64_t column) {
                return first_key + n < s.keys
                           ? element<A>(x, s.batch, place.kv_head, s.key_begin + first_key + n, column)
                           : A{0};
            };
        };
        const auto other = [&](const Tensor4& x) {
            return [&](int n, std::int64_t column) {
                return query + n < range.end ? element<A>(x, s.batch, h, s.query_begin + query + n, column) : A{0};
            };
        };
        A* const ddot = memory.weight[0][warp][lane];
        A* const weight = memory.weight[1][warp][lane];
        scores(memory, Side{c.head_size, c.value_size, &c.k, &c.q, &c.v, &c.dout}, own, other, ddot, weight);
        const std::int64_t i = query + lane;
        const bool read = i < range.end;
        const std::int64_t p = read ? query_position(c, s, i) : 0;
        const A lse = read ? element<A>(c.lse, s.batch, h, s.query_begin + i, 0) : static_cast<A>(minus_infinity);
        const A delta = read ? static_cast<const A*>(c.delta)[row_number(c, s, h, i)] : A{0};
        std::uint32_t seen = 0;
#pragma unroll 1
        for (int r = 0; r < rows_per_warp; ++r) {
            const Pair pair{h, i, own_key + r, p, of_row(my_position, r)};
            Gradient<A> gradient;
            if (read && own_key + r < s.keys) { gradient = gradient_of<A>(c, s, pair, ddot[r], weight[r], lse, delta); }
            const std::uint32_t seen_of_row = __ballot_sync(~0U, gradient.visible);
            if (lane == r) { seen = seen_of_row; }
            ddot[r] = gradient.ddot;
            weight[r] = gradient.weight;
        }
        __syncwarp();
        const auto row_of = [&](const Tensor4& x, std::int64_t size) {
            return [&x, size, &s, h, query, first_column](int n, int m) {
                const std::int64_t column = first_column + 32 * m;
                return column < size ? element<A>(x, s.batch, h, s.query_begin + query + n, column) : A{0};
            };
        };
        accumulate(memory.weight[0][warp], seen, row_of(c.q, c.head_size), dk);
        accumulate(memory.weight[1][warp], seen, row_of(c.dout, c.value_size), dv);
        __syncwarp();
    }
#pragma unroll
    for (int r = 0; r < rows_per_warp; ++r) {
        if (own_key + r >= s.key_rows) { continue; }
        const std::int64_t t = s.key_begin + own_key + r;
#pragma unroll
        for (int m = 0; m < lane_columns; ++m) {
            const std::int64_t column = first_column + 32 * m;
            if (column < c.head_size) { put<A>(c.dk, s.batch, place.kv_head, t, column, dk[r][m]); }
            if (column < c.value_size) { put<A>(c.dv, s.batch, place.kv_head, t, column, dv[r][m]); }
        }
    }
}

/// Blocks take tile after tile, as there may be fewer blocks: a launch that finds nothing to do is short.
template <class A, bool of_keys>
__global__ void __launch_bounds__(32 * warps)
    sweep(const __grid_constant__ AttentionCall c, std::int64_t tiles, std::int64_t parts, std::int64_t blocks) {
    __shared__ TileMemory<A> memory;
    if (c.spoilt != nullptr && *c.spoilt == 0) { return; }
    for (std::int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
        const BlockPlace place = block_place(c, parts, tiles, block);
        if constexpr (of_keys) {
            gradients_of_keys<A>(c, memory, place);
        } else {
            gradients_of_queries<A>(c, memory, place);
        }
        __syncthreads();
    }
}

/// One block an element of the bias; its warps share out the pairs that read it, in a fixed order.
template <class A>
__global__ void __launch_bounds__(32 * warps) gradient_of_bias(const __grid_constant__ AttentionCall c) {
    __shared__ double partial[warps];
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const std::int64_t extent[4] = {c.entries, c.heads, c.queries, c.keys};
    std::int64_t begin[4], count[4], n = blockIdx.x;
    for (int axis = 3; axis >= 0; --axis) {
        const bool summed = c.dbias_extent[axis] == 1;
        begin[axis] = n % c.dbias_extent[axis];
        n /= c.dbias_extent[axis];
        count[axis] = summed ? extent[axis] : 1;
        if (summed) { begin[axis] = 0; }
    }
    double sum = 0;
    const std::int64_t pairs = count[0] * count[1] * count[2] * count[3];
    for (std::int64_t pair = warp; pair < pairs; pair += warps) {
        std::int64_t rest = pair;
        const std::int64_t j = begin[3] + rest % count[3];
        rest /= count[3];
        const std::int64_t i = begin[2] + rest % count[2];
        rest /= count[2];
        const std::int64_t h = begin[1] + rest % count[1];
        const std::int64_t b = begin[0] + rest / count[1];
        const Entry s = entry_of(c, b);
        if (i >= s.queries || j >= s.keys) { continue; }
        const Pair at{h, i, j, query_position(c, s, i), key_position(c, s, j)};
        const std::int64_t t = s.query_begin + i, u = s.key_begin + j, g = h / c.group;
        if (!score_of<A>(c, s, at, A{0}).visible) { continue; }
        A dot = 0, dout_v = 0;
        for (std::int64_t e = lane; e < c.head_size; e += 32) {
            dot += element<A>(c.q, s.batch, h, t, e) * element<A>(c.k, s.batch, g, u, e);
        }
        for (std::int64_t e = lane; e < c.value_size; e += 32) {
            dout_v += element<A>(c.dout, s.batch, h, t, e) * element<A>(c.v, s.batch, g, u, e);
        }
        const Gradient<A> gradient =
            gradient_of<A>(c, s, at, warp_sum(dot), warp_sum(dout_v), element<A>(c.lse, s.batch, h, t, 0),
                           static_cast<const A*>(c.delta)[row_number(c, s, h, i)]);
        if (gradient.visible) { sum += static_cast<double>(gradient.dx); }
    }
    if (lane == 0) { partial[warp] = sum; }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < warps; ++w) { sum += partial[w]; }
        std::int64_t offset = 0, element_number = blockIdx.x;
        for (int axis = 3; axis >= 0; --axis) {
            offset += element_number % c.dbias_extent[axis] * c.dbias.stride[axis];
            element_number /= c.dbias_extent[axis];
        }
        store_as<double>(c.dbias.dtype, c.dbias.data, offset, sum);
    }
}

/// target[b,h] = sum over the rows of head h (of entry b, or of all entries) of what they left. One block a number.
template <class A>
__global__ void sum_rows(const __grid_constant__ AttentionCall c, Tensor4 target, const A* rows, bool per_entry) {
    __shared__ double partial[32];
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const std::int64_t h = static_cast<std::int64_t>(blockIdx.x) % c.heads;
    const std::int64_t first = per_entry ? static_cast<std::int64_t>(blockIdx.x) / c.heads : 0;
    const std::int64_t last = per_entry ? first + 1 : c.entries;
    double sum = 0;
    for (std::int64_t b = first; b < last; ++b) {
        const Entry s = entry_of(c, b);
        for (std::int64_t i = threadIdx.x; i < s.queries; i += blockDim.x) {
            sum += static_cast<double>(rows[row_number(c, s, h, i)]);
        }
    }
    sum = warp_sum(sum);
    if (lane == 0) { partial[warp] = sum; }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < static_cast<int>(blockDim.x) / 32; ++w) { sum += partial[w]; }
        store_as<double>(target.dtype, target.data, first * target.stride[0] + h * target.stride[1], sum);
    }
}

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

template <class A>
void launch_deltas(cudaStream_t stream, const AttentionCall& c) {
    const std::int64_t rows = c.entries * c.heads * c.queries;
    if (rows > 0) { row_deltas<A><<<static_cast<unsigned>(divide_up(rows, 8)), 256, 0, stream>>>(c); }
}

template <class A>
void launch_sweeps(cudaStream_t stream, const AttentionCall& c) {
    const auto blocks_of = [&](std::int64_t tiles, std::int64_t parts) {
        return tiles * parts * c.kv_heads * c.entries;
    };
    const auto grid = [&](std::int64_t blocks) {
        return static_cast<unsigned>(c.spoilt != nullptr && blocks > 264 ? 264 : blocks);
    };
    const std::int64_t query_tiles = divide_up(c.queries * c.group, own_rows);
    const std::int64_t query_parts = divide_up(c.head_size, out_columns);
    if (const std::int64_t blocks = blocks_of(query_tiles, query_parts); blocks > 0) {
        sweep<A, false><<<grid(blocks), 32 * warps, 0, stream>>>(c, query_tiles, query_parts, blocks);
    }
    const std::int64_t key_tiles = divide_up(c.keys, own_rows);
    const std::int64_t key_parts = divide_up(c.head_size > c.value_size ? c.head_size : c.value_size, out_columns);
    if (const std::int64_t blocks = blocks_of(key_tiles, key_parts); blocks > 0) {
        sweep<A, true><<<grid(blocks), 32 * warps, 0, stream>>>(c, key_tiles, key_parts, blocks);
    }
}

/// Gradients of what is added to scores.
template <class A>
void launch_sums(cudaStream_t stream, const AttentionCall& c) {
    if (c.dbias.data != nullptr) {
        const std::int64_t blocks = c.dbias_extent[0] * c.dbias_extent[1] * c.dbias_extent[2] * c.dbias_extent[3];
        if (blocks > 0) { gradient_of_bias<A><<<static_cast<unsigned>(blocks), 32 * warps, 0, stream>>>(c); }
    }
    if (c.dsinks.data != nullptr && c.heads > 0) {
        sum_rows<A><<<static_cast<unsigned>(c.heads), 256, 0, stream>>>(c, c.dsinks, static_cast<const A*>(c.row_dsink),
                                                                        false);
    }
    if (c.dslopes.data != nullptr && c.heads > 0) {
        const std::int64_t blocks = c.heads * (c.slopes_per_entry ? c.entries : 1);
        if (blocks > 0) {
            sum_rows<A><<<static_cast<unsigned>(blocks), 256, 0, stream>>>(
                c, c.dslopes, static_cast<const A*>(c.row_dslope), c.slopes_per_entry);
        }
    }
}

}  // namespace

void launch_clear_gradients(void* stream, const AttentionCall& call) {
    launch_clear_behind(stream, call, call.dq, false, call.head_size, 0);
    launch_clear_behind(stream, call, call.dk, true, call.head_size, 0);
    launch_clear_behind(stream, call, call.dv, true, call.value_size, 0);
}

void launch_attention_deltas(void* stream, const AttentionCall& call, bool wide) {
    const auto queue = static_cast<cudaStream_t>(stream);
    if (wide) {
        launch_deltas<double>(queue, call);
    } else {
        launch_deltas<float>(queue, call);
    }
}

void launch_attention_sweeps(void* stream, const AttentionCall& call, bool wide) {
    const auto queue = static_cast<cudaStream_t>(stream);
    if (wide) {
        launch_sweeps<double>(queue, call);
        launch_sums<double>(queue, call);
    } else {
        launch_sweeps<float>(queue, call);
        launch_sums<float>(queue, call);
    }
}

void launch_attention_gradients(void* stream, const AttentionCall& call) {
    launch_sweeps<float>(static_cast<cudaStream_t>(stream), call);
}

void launch_attention_sums(void* stream, const AttentionCall& call) {
    launch_sums<float>(static_cast<cudaStream_t>(stream), call);
}

}  // namespace heed::cuda
