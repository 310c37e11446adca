/// One query a sequence against many keys: the time is that of reading keys and values once.
///
/// The heads that share a key/value head are the 16 rows of one product. The keys of a sequence are split into ranges
/// whose size follows from their number alone; a block takes a range, each of its warps every fourth group of 16 keys,
/// with copies of its own running ahead of it. The block that comes last of a head joins the ranges in their order.
/// Keys may lie in the pages of a cache: their rows are looked up a step before they are asked for.

#include "cuda/sm90/decode.h"

#include "cuda/sm90/tiles.cuh"

namespace heed::cuda::sm90 {
namespace {

constexpr int rows = 16;       ///< of a product
constexpr int warps = 4;       ///< of a block
constexpr int key_group = 16;  ///< keys of a warp's step

template <int size_, Half type_>
struct Shape {
    static constexpr int size = size_;
    static constexpr Half type = type_;
    static constexpr int chunks = size / 8;  ///< of 16 bytes, in a row
    static constexpr int stages = 3;         ///< so that two blocks fit a multiprocessor
    static constexpr int group_bytes = key_group * size * 2;
};

template <class S>
struct alignas(128) Memory {
    // Keys and values of each warp's groups; at the end, the warps' results.
    unsigned char ring[warps][S::stages][2][S::group_bytes];
    float largest[warps][rows], sum[warps][rows];
    float top[rows], total[rows];
    int last;
};

__host__ __device__ inline std::int64_t split_size(std::int64_t keys) {
    std::int64_t size = 256;
    while (size < 4096 && size * 32 < keys) { size *= 2; }
    return size;
}
__host__ __device__ inline std::int64_t most_splits(std::int64_t keys) {
    const std::int64_t small = (keys + 255) / 256, large = (keys + 4095) / 4096;
    const std::int64_t usual = small < 32 ? small : 32;
    return large > usual ? large : usual < 1 ? 1 : usual;
}

/// The second-level cache fetches half a row at a time (L2::128B): with 256 bytes, reading is 4 to 8 % slower.
__device__ inline void copy_16(std::uint32_t to, const void* from, bool inside) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(inside ? 16 : 0)
                 : "memory");
}
__device__ inline void load_matrices(std::uint32_t (&x)[4], std::uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address)
                 : "memory");
}
__device__ inline void load_transposed(std::uint32_t (&x)[4], std::uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address)
                 : "memory");
}
template <Half type>
__device__ inline void multiply(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
    if constexpr (type == Half::bf16) {
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, "
            "%1, "
            "%2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    } else {
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
            "%2, "
            "%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
}

template <class S, bool paged>
__global__ void __launch_bounds__(32 * warps)
    decode(const __grid_constant__ AttentionCall c, const __grid_constant__ DecodeScratch scratch, int splits,
           int row_blocks) {
    extern __shared__ char raw[];
    auto& m = *reinterpret_cast<Memory<S>*>(raw);
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const int split = static_cast<int>(blockIdx.x);
    const int kv_head = static_cast<int>(blockIdx.y) / row_blocks,
              row_block = static_cast<int>(blockIdx.y) % row_blocks;
    const Entry s = entry_of(c, blockIdx.z);
    const float scale = static_cast<float>(c.scale * 1.4426950408889634);

    // The one query's keys.
    std::int64_t begin = 0, end = s.queries > 0 ? s.keys : 0;
    const std::int64_t position = s.shift;
    if (c.right >= 0) { end = min(end, position + c.right + 1); }
    if (c.left >= 0) { begin = max(begin, position - c.left); }
    const std::int64_t count = end > begin ? end - begin : 0;
    const std::int64_t size = split_size(count);
    const int used = count == 0 ? 1 : static_cast<int>((count + size - 1) / size);
    if (split >= used || s.rows == 0) { return; }
    const std::int64_t first = begin + split * size, last = min(end, first + size);
    const int groups = last > first ? static_cast<int>((last - first + key_group - 1) / key_group) : 0;

    const auto head_of = [&](int row) { return kv_head * static_cast<int>(c.group) + row_block * rows + row; };
    const int rows_here = min(rows, static_cast<int>(c.group) - row_block * rows);

    // Queries as the first operand: rows lane/4 and lane/4 + 8, columns 2 (lane % 4) and 8 further on, of each 16.
    std::uint32_t q[S::size / 16][4];
#pragma unroll
    for (int step = 0; step < S::size / 16; ++step) {
#pragma unroll
        for (int part = 0; part < 4; ++part) {
            const int row = lane / 4 + part % 2 * 8, column = 16 * step + lane % 4 * 2 + part / 2 * 8;
            q[step][part] = 0;
            if (row < rows_here && s.queries > 0) {
                const auto* from = static_cast<const std::uint16_t*>(c.q.data) + s.batch * c.q.stride[0] +
                                   head_of(row) * c.q.stride[1] + s.query_begin * c.q.stride[2] + column;
                q[step][part] = *reinterpret_cast<const std::uint32_t*>(from);
            }
        }
    }

    using Rows = const std::uint16_t*;
    const Rows keys = paged ? reinterpret_cast<Rows>(c.pages.k.data + kv_head * c.pages.k.head_bytes)
                            : static_cast<Rows>(c.k.data) + s.batch * c.k.stride[0] + kv_head * c.k.stride[1];
    const Rows values = paged ? reinterpret_cast<Rows>(c.pages.v.data + kv_head * c.pages.v.head_bytes)
                              : static_cast<Rows>(c.v.data) + s.batch * c.v.stride[0] + kv_head * c.v.stride[1];
    const std::int64_t key_pitch = paged ? c.pages.k.row_bytes / 2 : c.k.stride[2];
    const std::int64_t value_pitch = paged ? c.pages.v.row_bytes / 2 : c.v.stride[2];
    // In pages: the row, counted over the whole pool, of key lane % 16 of a group.
    const std::int32_t* const table = paged ? c.pages.table + c.pages.begin[s.number] : nullptr;
    const auto page_size = static_cast<std::uint32_t>(paged ? c.pages.page_size : 1);
    const auto row_in_pool = [&](int group) {
        if (!paged || group >= groups) { return 0U; }
        const auto key = static_cast<std::uint32_t>(min(first + group * key_group + lane % key_group, last - 1));
        const std::uint32_t page = key / page_size;
        return static_cast<std::uint32_t>(__ldg(table + page)) * page_size + key - page * page_size;
    };
    std::uint32_t next_row = row_in_pool(warp);
    // 16-byte chunks swizzled by the row: reads of 8 rows of one chunk meet all banks.
    const auto place = [&](int stage, int which, int row, int chunk) {
        return shared_address(m.ring[warp][stage][which]) + (row * S::chunks + (chunk ^ row % 8)) * 16;
    };
    const auto ask = [&](int group, int stage) {
        const std::uint32_t rows_of_group = next_row;
        next_row = row_in_pool(group + warps);
        if (group < groups) {
            const std::int64_t key = first + group * key_group;
#pragma unroll
            for (int n = 0; n < key_group * S::chunks / 32; ++n) {
                const int row = (32 * n + lane) / S::chunks, chunk = (32 * n + lane) % S::chunks;
                const bool inside = key + row < last;
                const std::int64_t at = paged ? static_cast<std::int64_t>(__shfl_sync(~0U, rows_of_group, row))
                                              : s.key_begin + (inside ? key + row : first);
                copy_16(place(stage, 0, row, chunk), keys + at * key_pitch + 8 * chunk, inside);
                copy_16(place(stage, 1, row, chunk), values + at * value_pitch + 8 * chunk, inside);
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };

    float out[S::size / 8][4];
    float largest[2] = {-__builtin_huge_valf(), -__builtin_huge_valf()}, sum[2] = {0, 0};
#pragma unroll
    for (int n = 0; n < S::size / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) { out[n][e] = 0; }
    }
#pragma unroll
    for (int n = 0; n < S::stages - 1; ++n) { ask(warp + n * warps, n); }
    int stage = 0;
    for (int group = warp; group < groups; group += warps) {
        ask(group + (S::stages - 1) * warps, (stage + S::stages - 1) % S::stages);
        asm volatile("cp.async.wait_group %0;" ::"n"(S::stages - 1) : "memory");
        __syncwarp();
        float x[2][4] = {};
#pragma unroll
        for (int step = 0; step < S::size / 16; ++step) {
            std::uint32_t k[4];
            // Matrices: keys 0-7 with the step's two chunks, then keys 8-15.
            load_matrices(k, place(stage, 0, lane % 8 + lane / 16 * 8, 2 * step + lane / 8 % 2));
            multiply<S::type>(x[0], q[step], k[0], k[1]);
            multiply<S::type>(x[1], q[step], k[2], k[3]);
        }
        const std::int64_t key = first + group * key_group + lane % 4 * 2;
        float next[2] = {largest[0], largest[1]}, shift[2], factor[2];
#pragma unroll
        for (int n = 0; n < 2; ++n) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                if (key + 8 * n + e % 2 >= last) { x[n][e] = -__builtin_huge_valf(); }
                next[e / 2] = fmaxf(next[e / 2], x[n][e]);
            }
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            next[r] = fmaxf(next[r], __shfl_xor_sync(~0U, next[r], 1));
            next[r] = fmaxf(next[r], __shfl_xor_sync(~0U, next[r], 2));
            shift[r] = next[r] == -__builtin_huge_valf() ? 0.0F : next[r] * scale;
            factor[r] = exp2_fast(largest[r] * scale - shift[r]);
            largest[r] = next[r];
            sum[r] *= factor[r];
        }
#pragma unroll
        for (int n = 0; n < 2; ++n) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                x[n][e] = exp2_fast(x[n][e] * scale - shift[e / 2]);
                sum[e / 2] += x[n][e];
            }
        }
        const std::uint32_t p[4] = {packed<S::type>(x[0][0], x[0][1]), packed<S::type>(x[0][2], x[0][3]),
                                    packed<S::type>(x[1][0], x[1][1]), packed<S::type>(x[1][2], x[1][3])};
#pragma unroll
        for (int n = 0; n < S::size / 8; ++n) {
#pragma unroll
            for (int e = 0; e < 4; ++e) { out[n][e] *= factor[e / 2]; }
        }
#pragma unroll
        for (int n = 0; n < S::size / 16; ++n) {
            std::uint32_t v[4];
            load_transposed(v, place(stage, 1, lane % 16, 2 * n + lane / 16));
            multiply<S::type>(out[2 * n], p, v[0], v[1]);
            multiply<S::type>(out[2 * n + 1], p, v[2], v[3]);
        }
        __syncwarp();
        stage = (stage + 1) % S::stages;
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        sum[r] += __shfl_xor_sync(~0U, sum[r], 1);
        sum[r] += __shfl_xor_sync(~0U, sum[r], 2);
    }

    // The warps' results, joined in their order.
    __syncthreads();
    float* joined = reinterpret_cast<float*>(m.ring);  // [warps][rows][size]
#pragma unroll
    for (int n = 0; n < S::size / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const int row = lane / 4 + e / 2 * 8;
            joined[(warp * rows + row) * S::size + 8 * n + lane % 4 * 2 + e % 2] = out[n][e];
        }
    }
    if (lane % 4 == 0) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            m.largest[warp][lane / 4 + 8 * r] = largest[r];
            m.sum[warp][lane / 4 + 8 * r] = sum[r];
        }
    }
    __syncthreads();
    const std::int64_t head_block =
        (static_cast<std::int64_t>(blockIdx.z) * c.kv_heads + kv_head) * row_blocks + row_block;
    float* const parts = scratch.parts + head_block * splits * rows * (S::size + 2);
    auto* const statistics = reinterpret_cast<float2*>(parts + static_cast<std::int64_t>(splits) * rows * S::size);
    const auto finish = [&](int row, int column, float value, float top, float total) {
        const int head = head_of(row);
        const bool empty = total == 0 && top == -__builtin_huge_valf();
        const std::int64_t at = s.batch * c.out.stride[0] + head * c.out.stride[1] + s.query_begin * c.out.stride[2];
        store_as<float>(c.out.dtype, c.out.data, at + column, empty ? 0.0F : value / total);
        if (column == 0 && c.lse.data != nullptr) {
            const std::int64_t lse_at =
                s.batch * c.lse.stride[0] + head * c.lse.stride[1] + s.query_begin * c.lse.stride[2];
            store_as<float>(c.lse.dtype, c.lse.data, lse_at,
                            empty ? -__builtin_huge_valf() : (top * scale + log2f(total)) * 0.6931471805599453F);
        }
    };
    const auto weight = [&](float top, float all) {
        return all == -__builtin_huge_valf() ? 1.0F : exp2_fast((top - all) * scale);
    };
    for (int n = static_cast<int>(threadIdx.x); n < rows_here * S::size; n += 32 * warps) {
        const int row = n / S::size, column = n % S::size;
        float top = m.largest[0][row], value = 0, total = 0;
        for (int w = 1; w < warps; ++w) { top = fmaxf(top, m.largest[w][row]); }
        for (int w = 0; w < warps; ++w) {
            const float factor = weight(m.largest[w][row], top);
            value += factor * joined[(w * rows + row) * S::size + column];
            total += factor * m.sum[w][row];
        }
        if (used == 1) {
            finish(row, column, value, top, total);
        } else {
            parts[(static_cast<std::int64_t>(split) * rows + row) * S::size + column] = value;
            if (column == 0) { statistics[split * rows + row] = make_float2(top, total); }
        }
    }
    if (used == 1) { return; }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) { m.last = atomicAdd(scratch.arrivals + head_block, 1) == used - 1 ? 1 : 0; }
    __syncthreads();
    if (m.last == 0) { return; }
    __threadfence();
    // Weights of the ranges, a warp a row, then four columns a thread: every load of a range is on its way at once.
    float* const weights = joined;  // [rows][splits]
    for (int row = warp; row < rows_here; row += warps) {
        float top = -__builtin_huge_valf(), total = 0;
        for (int number = lane; number < used; number += 32) {
            top = fmaxf(top, __ldcg(statistics + number * rows + row).x);
        }
        for (int apart = 16; apart > 0; apart /= 2) { top = fmaxf(top, __shfl_xor_sync(~0U, top, apart)); }
        for (int number = lane; number < used; number += 32) {
            const float2 part = __ldcg(statistics + number * rows + row);
            const float factor = weight(part.x, top);
            weights[row * splits + number] = factor;
            total += factor * part.y;
        }
        for (int apart = 16; apart > 0; apart /= 2) { total += __shfl_xor_sync(~0U, total, apart); }
        if (lane == 0) {
            m.top[row] = top;
            m.total[row] = total;
        }
    }
    __syncthreads();
    for (int n = static_cast<int>(threadIdx.x); n < rows_here * S::size / 4; n += 32 * warps) {
        const int row = n / (S::size / 4), column = n % (S::size / 4) * 4;
        float value[4] = {};
#pragma unroll 16
        for (int number = 0; number < used; ++number) {
            const float4 part = __ldcg(reinterpret_cast<const float4*>(
                parts + (static_cast<std::int64_t>(number) * rows + row) * S::size + column));
            const float factor = weights[row * splits + number];
            value[0] += factor * part.x;
            value[1] += factor * part.y;
            value[2] += factor * part.z;
            value[3] += factor * part.w;
        }
        for (int e = 0; e < 4; ++e) { finish(row, column + e, value[e], m.top[row], m.total[row]); }
    }
    if (threadIdx.x == 0) { scratch.arrivals[head_block] = 0; }
}

int row_blocks_of(const AttentionCall& c) { return static_cast<int>((c.group + rows - 1) / rows); }

std::int64_t longest_keys(const AttentionCall& c) { return c.pages.page_size > 0 ? c.pages.longest : c.keys; }

template <class S, bool paged>
void launch(cudaStream_t stream, const AttentionCall& c, const DecodeScratch& scratch, LaunchMemo& memo) {
    const int splits = static_cast<int>(most_splits(longest_keys(c))), row_blocks = row_blocks_of(c);
    const int bytes = static_cast<int>(sizeof(Memory<S>));
    if (!memo.allow_shared(decode<S, paged>, bytes)) { return; }  // what CUDA says of it is thrown behind the launch
    const dim3 grid(static_cast<unsigned>(splits), static_cast<unsigned>(c.kv_heads * row_blocks),
                    static_cast<unsigned>(c.entries));
    decode<S, paged><<<grid, 32 * warps, bytes, stream>>>(c, scratch, splits, row_blocks);
}

template <class S>
void launch_shape(cudaStream_t stream, const AttentionCall& c, const DecodeScratch& scratch, LaunchMemo& memo) {
    if (c.pages.page_size > 0) {
        launch<S, true>(stream, c, scratch, memo);
    } else {
        launch<S, false>(stream, c, scratch, memo);
    }
}

template <Half type>
void launch_type(cudaStream_t stream, const AttentionCall& c, const DecodeScratch& scratch, LaunchMemo& memo) {
    if (c.head_size == 64) {
        launch_shape<Shape<64, type>>(stream, c, scratch, memo);
    } else {
        launch_shape<Shape<128, type>>(stream, c, scratch, memo);
    }
}

}  // namespace

std::int64_t decode_arrivals(const AttentionCall& c) { return c.entries * c.kv_heads * row_blocks_of(c); }
std::int64_t decode_parts(const AttentionCall& c) {
    return decode_arrivals(c) * most_splits(longest_keys(c)) * rows * (c.head_size + 2);
}

void launch_decode(void* stream, const AttentionCall& c, const DecodeScratch& scratch, LaunchMemo& memo) {
    const auto queue = static_cast<cudaStream_t>(stream);
    if (c.entries == 0 || c.heads == 0) { return; }
    if (c.q.dtype == DType::bf16) {
        launch_type<Half::bf16>(queue, c, scratch, memo);
    } else {
        launch_type<Half::f16>(queue, c, scratch, memo);
    }
}

}  // namespace heed::cuda::sm90
