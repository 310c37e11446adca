#pragma once
/// Every option on a tile of scores, as the tensor cores leave it in registers.
///
/// Whatever looks at single pairs is one bit a number (may it be seen, is it kept), found in loops whose code is there
/// once; what changes scores is a pass over the thread's numbers. Nothing here is a call: a call inside a kernel makes
/// ptxas wait for every product on its own.

#include "cuda/sm90/general.h"
#include "cuda/sm90/tiles.cuh"

namespace heed::cuda::sm90 {

constexpr float log2_e = 1.4426950408889634F;

/// Where a thread's numbers of a tile lie: rows `row` and `row + 8`, columns `column` and `column + 1` and 8 further on
/// each time. Rows are queries and columns keys, or with keys_down the other way round.
template <bool keys_down>
struct Spot {
    int row, column;
    __device__ int in_rows(int n) const { return row + n % 4 / 2 * 8; }
    __device__ int in_columns(int n) const { return column + n / 4 * 8 + n % 2; }
    __device__ int query(int n) const { return keys_down ? in_columns(n) : in_rows(n); }
    __device__ int key(int n) const { return keys_down ? in_rows(n) : in_columns(n); }
};

/// One bit for each of a thread's numbers.
struct Bits {
    std::uint32_t word[2];
    __device__ bool operator()(int n) const { return (word[n % 4 / 2] >> (n / 4 * 2 + n % 2) & 1U) != 0; }
    __device__ void put(int n, bool bit) {
        const std::uint32_t mask = (bit ? 1U : 0U) << (n / 4 * 2 + n % 2);
        // No index that is known at run time: registers have none.
        word[0] |= n % 4 / 2 == 0 ? mask : 0U;
        word[1] |= n % 4 / 2 == 0 ? 0U : mask;
    }
};

__device__ inline Entry entry_of(const Work& work) {
    Entry s;
    s.number = work.entry;
    s.batch = work.batch;
    s.query_begin = work.query_begin;
    s.queries = work.queries;
    s.key_begin = work.key_begin;
    s.keys = work.keys;
    s.shift = work.shift;
    return s;
}

/// Whose bytes are not 0. Pairs outside the entry read its last row or key, and count for nothing.
template <int count, bool keys_down>
__device__ inline Bits bits_of_bytes(const Tensor4& x, const Work& work, int head, Spot<keys_down> spot) {
    Bits bits{{0, 0}};
    const auto* bytes = static_cast<const std::uint8_t*>(x.data) + work.entry * x.stride[0] + head * x.stride[1];
#pragma unroll 1
    for (int begin = 0; begin < count; begin += 16) {
        std::uint8_t value[16];
#pragma unroll
        for (int n = 0; n < 16; ++n) {
            const int i = min(spot.query(begin + n), work.queries - 1), j = min(spot.key(begin + n), work.keys - 1);
            value[n] = bytes[i * x.stride[2] + j * x.stride[3]];
        }
        std::uint32_t part[2] = {0, 0};
#pragma unroll
        for (int n = 0; n < 16; ++n) { part[n % 4 / 2] |= (value[n] != 0 ? 1U : 0U) << (n / 4 * 2 + n % 2); }
        bits.word[0] |= part[0] << begin / 2;
        bits.word[1] |= part[1] << begin / 2;
    }
    return bits;
}

/// Does a pair belong to the pattern, and with explicit positions to the band?
__device__ inline bool pair_allowed(const AttentionCall& c, const Entry& s, int head, int i, int j) {
    const std::int64_t p = query_position(c, s, i), at = key_position(c, s, j);
    if (c.right >= 0 && at > p + c.right) { return false; }
    if (c.left >= 0 && at < p - c.left) { return false; }
    return c.pattern_words == 0 || run_pattern_program(c.pattern, c.pattern_words, PatternPoint{s.number, head, p, at});
}

/// Pairs that allow, pattern and explicit positions let be seen.
template <int count, bool keys_down>
__device__ inline Bits allowed_bits(const AttentionCall& c, const Work& work, int head, Spot<keys_down> spot) {
    Bits bits{{~0U, ~0U}};
    if (c.allow.data != nullptr) { bits = bits_of_bytes<count>(c.allow, work, head, spot); }
    if (c.pattern_words > 0 || c.query_positions.data != nullptr || c.key_positions.data != nullptr) {
        const Entry s = entry_of(work);
        Bits more{{0, 0}};
#pragma unroll 1
        for (int n = 0; n < count; ++n) {
            const int i = min(spot.query(n), work.queries - 1), j = min(spot.key(n), work.keys - 1);
            more.put(n, pair_allowed(c, s, head, i, j));
        }
        bits.word[0] &= more.word[0];
        bits.word[1] &= more.word[1];
    }
    return bits;
}

/// Which of four neighbouring keys of a query are kept, as 4 bits.
__device__ inline std::uint32_t kept_of_four(const AttentionCall& c, std::uint32_t plane, int i, int group) {
    const auto word = philox4x32(
        {static_cast<std::uint32_t>(group), static_cast<std::uint32_t>(i), plane, c.drop_offset}, c.drop_seed);
    const auto least = static_cast<std::uint32_t>(c.drop_threshold);
    const std::uint32_t kept = (word[0] >= least ? 1U : 0U) | (word[1] >= least ? 2U : 0U) |
                               (word[2] >= least ? 4U : 0U) | (word[3] >= least ? 8U : 0U);
    return c.drop_threshold > 0xFFFFFFFFU ? 0U : kept;  // a probability that rounds to 1
}

/// Dropout by coordinates. The random words of a query come four keys at a time, so the lanes that have the four share
/// the work and pass the bits on.
template <int count, bool keys_down>
__device__ inline Bits random_bits(const AttentionCall& c, std::uint32_t plane, Spot<keys_down> spot) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    Bits bits{{0, 0}};
    if constexpr (!keys_down) {
        // Lanes 2n and 2n+1 have two of the four each, of two rows: one row a lane.
        const bool odd = lane % 2 != 0;
        const int i = spot.row + (odd ? 8 : 0), group = spot.column / 4;
        std::uint32_t mine[2] = {0, 0};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll 4
            for (int n = 0; n < count / 8; ++n) {
                mine[half] |= kept_of_four(c, plane, i, group + (half * (count / 8) + n) * 2) << 4 * n;
            }
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const std::uint32_t theirs = __shfl_xor_sync(~0U, mine[half], 1);
            std::uint32_t row[2] = {odd ? theirs : mine[half], odd ? mine[half] : theirs};
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                // Two bits of every four, side by side.
                std::uint32_t x = (row[r] >> (odd ? 2 : 0)) & 0x33333333U;
                x = (x | x >> 2) & 0x0F0F0F0FU;
                x = (x | x >> 4) & 0x00FF00FFU;
                x = (x | x >> 8) & 0x0000FFFFU;
                bits.word[r] |= x << half * (count / 4);
            }
        }
    } else {
        // Four lanes, 4 apart, have one key each of the same four, for the same queries: a quarter of the queries each.
        static_assert(count == 32, "tiles of 64 queries");
        const int quarter = lane / 4 % 4, group = spot.row / 4;
        std::uint32_t mine = 0;
#pragma unroll 2
        for (int n = 0; n < 4; ++n) {
            const int i = spot.column + (quarter + n / 2 * 4) * 8 + n % 2;
            mine |= (kept_of_four(c, plane, i, group) | kept_of_four(c, plane, i, group + 2) << 4) << 8 * n;
        }
#pragma unroll
        for (int from = 0; from < 4; ++from) {
            const std::uint32_t theirs = __shfl_sync(~0U, mine, lane & ~12 | from << 2) >> quarter;
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                const int at = (from + n / 2 * 4) * 2 + n % 2;
                bits.word[0] |= (theirs >> 8 * n & 1U) << at;
                bits.word[1] |= (theirs >> (8 * n + 4) & 1U) << at;
            }
        }
    }
    return bits;
}

/// The coordinate of the generator that an entry and a head are.
__device__ inline std::uint32_t plane_of(const AttentionCall& c, const Work& work, int head) {
    return static_cast<std::uint32_t>(work.entry * static_cast<int>(c.heads) + head);
}

/// Numbers that step 6 keeps.
template <int count, bool keys_down>
__device__ inline Bits kept_bits(const AttentionCall& c, const Work& work, int head, Spot<keys_down> spot) {
    return c.keep.data != nullptr ? bits_of_bytes<count>(c.keep, work, head, spot)
                                  : random_bits<count>(c, plane_of(c, work, head), spot);
}

__device__ inline float reciprocal_fast(float x) {
    float result;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

/// The device's own approximation is wrong in the third digit, which a soft-cap of 50 makes an error of 0.02 in a
/// score. What is small takes a series: there the difference of two numbers near 1 has lost its digits.
__device__ inline float tanh_fast(float x) {
    const float far = 1 - 2 * reciprocal_fast(1 + exp2_fast(x * (2 * log2_e)));
    const float square = x * x;
    const float near = x + x * square * (square * (2.0F / 15) - 1.0F / 3);
    return fabsf(x) < 0.1F ? near : far;
}

/// take(n, tanh of the score over the cap).
template <int count, class Take>
__device__ inline void each_bent(const AttentionCall& c, const float (&s)[count], const Take& take) {
    const float inside = static_cast<float>(c.scale / c.softcap);
#pragma unroll
    for (int n = 0; n < count; ++n) { take(n, tanh_fast(s[n] * inside)); }
}

/// take(n, bias) where it lies, of a type that is the same for every thread.
template <int count, bool keys_down, class Take>
__device__ inline void each_bias(const AttentionCall& c, const Work& work, int head, Spot<keys_down> spot,
                                 const Take& take) {
    const Tensor4& x = c.bias;
    const std::int64_t begin = work.entry * x.stride[0] + head * x.stride[1];
    const auto all = [&](const auto& element) {
#pragma unroll
        for (int n = 0; n < count; ++n) {
            const int i = min(spot.query(n), work.queries - 1), j = min(spot.key(n), work.keys - 1);
            take(n, element(begin + i * x.stride[2] + j * x.stride[3]));
        }
    };
    switch (x.dtype) {
        case DType::bf16:
            all([&](std::int64_t at) { return bf16_to_float(static_cast<const std::uint16_t*>(x.data)[at]); });
            break;
        case DType::f16:
            all([&](std::int64_t at) { return f16_to_float(static_cast<const std::uint16_t*>(x.data)[at]); });
            break;
        case DType::f32: all([&](std::int64_t at) { return static_cast<const float*>(x.data)[at]; }); break;
        default:
            all([&](std::int64_t at) { return static_cast<float>(static_cast<const double*>(x.data)[at]); });
            break;
    }
}

__device__ inline float slope_of(const AttentionCall& c, const Work& work, int head) {
    return load_as<float>(c.slopes.dtype, c.slopes.data, work.entry * c.slopes.stride[0] + head * c.slopes.stride[1]);
}

/// take(n, |position of the query - position of the key|).
template <int count, bool keys_down, class Take>
__device__ inline void each_distance(const AttentionCall& c, const Work& work, Spot<keys_down> spot, const Take& take) {
    if (c.query_positions.data == nullptr && c.key_positions.data == nullptr) {
        const int apart = spot.query(0) + work.shift - spot.key(0);
        const float first = static_cast<float>(apart);
#pragma unroll
        for (int n = 0; n < count; ++n) {
            const int rows = n % 4 / 2 * 8, columns = n / 4 * 8 + n % 2;
            take(n, fabsf(first + static_cast<float>(keys_down ? columns - rows : rows - columns)));
        }
        return;
    }
    const Entry s = entry_of(work);
#pragma unroll
    for (int n = 0; n < count; ++n) {
        const int i = min(spot.query(n), work.queries - 1), j = min(spot.key(n), work.keys - 1);
        const std::int64_t apart = query_position(c, s, i) - key_position(c, s, j);
        take(n, static_cast<float>(apart < 0 ? -apart : apart));
    }
}

/// What is true of a tile: of all its squares together.
__device__ inline unsigned flags_of(const Squares& squares, const Work& work, int head, int query, int key, int queries,
                                    int keys) {
    if (squares.flags == nullptr) { return Squares::some_seen; }
    const std::int64_t plane = (squares.entries > 1 ? work.entry : 0) * squares.heads + (squares.heads > 1 ? head : 0);
    unsigned flags = 0;
    for (int i = query / Squares::side; i < (query + queries) / Squares::side; ++i) {
        for (int j = key / Squares::side; j < (key + keys) / Squares::side; ++j) {
            if (i < squares.query_squares && j < squares.key_squares) {
                flags |= squares.flags[(plane * squares.query_squares + i) * squares.key_squares + j];
            }
        }
    }
    return flags;
}

}  // namespace heed::cuda::sm90
