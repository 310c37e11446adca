#pragma once
/// What the sweeps of the backward pass with every option share; see backward_general.cu.

#include "cuda/sm90/backward_tiles.cuh"
#include "cuda/sm90/general.cuh"

namespace heed::cuda::sm90 {
namespace {

template <class S>
struct alignas(1024) GeneralMemory {
    Memory<S> common;
    std::uint16_t bias[stages][2 * 64 * 64];  ///< of 128 queries and 64 keys, or of 64 queries and two times 64 keys
};

/// Maps of a sweep; the bias comes with what scores are made of.
struct GeneralMaps {
    Maps tensors;
    CUtensorMap bias;
};

struct GeneralCall {
    AttentionCall call;
    TileOrder order;
    Squares squares;
    BackwardScratch scratch;
    int padded_rows;
    bool bias_is_copied;  ///< by the copy engine; else read where it lies
};

/// A tile of the bias beside the other tensors of a stage: `parts` of 64 keys from (query, key) on.
template <class S>
__device__ void copy_bias(GeneralMemory<S>& memory, const GeneralMaps& maps, const GeneralCall& g, Barrier& full,
                          int stage, int parts, int query, int key, int head, int entry) {
    const Tensor4& x = g.call.bias;
    for (int part = 0; part < parts; ++part) {
        copy_box(memory.bias[stage] + part * 64 * 64, maps.bias, full, key + 64 * part, query,
                 x.stride[1] != 0 ? head : 0, x.stride[0] != 0 ? entry : 0);
    }
}
template <class S>
__device__ int bias_bytes(const GeneralCall& g) {
    return g.bias_is_copied ? 2 * 64 * 64 * 2 : 0;
}

/// Adds a tile of the bias in shared memory to scores in units of log2(e).
template <int count, bool keys_down, bool bf16>
__device__ inline void add_bias_of_tile(const std::uint16_t* tile, float (&s)[count]) {
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32 % 4;
    const int warpgroup = thread / 128 - 1;
    const auto add = [&](int n, std::uint16_t bits) {
        const float bias = bf16 ? bf16_to_float(bits) : f16_to_float(bits);
        s[n] = bias == -__builtin_huge_valf() ? bias : s[n] + bias * log2_e;
    };
    // Chunks of 16 bytes are swizzled by the row of 128 bytes that they are in.
    const auto read16 = [](std::uint32_t address) {
        std::uint16_t bits;
        asm volatile("ld.shared.u16 %0, [%1];" : "=h"(bits) : "r"(address));
        return bits;
    };
    if constexpr (keys_down) {
        const std::uint32_t first = shared_address(tile + warpgroup * 64 * 64) + lane / 4 * 2 + lane % 4 * 256;
#pragma unroll
        for (int n = 0; n < count; ++n) {
            const int row = lane % 4 * 2 + n % 2, chunk = 2 * warp + n % 4 / 2;
            add(n, read16(first + (n / 4 * 8 + n % 2) * 128 + ((chunk ^ row) * 16)));
        }
    } else {
        const std::uint32_t first = shared_address(tile + (64 * warpgroup + 16 * warp + lane / 4) * 64) + lane % 4 * 4;
#pragma unroll
        for (int n = 0; n < count; n += 2) {
            std::uint32_t pair;
            asm volatile("ld.shared.u32 %0, [%1];"
                         : "=r"(pair)
                         : "r"(first + n % 4 / 2 * 8 * 128 + ((n / 4 ^ lane / 4) * 16)));
            add(n, static_cast<std::uint16_t>(pair));
            add(n + 1, static_cast<std::uint16_t>(pair >> 16));
        }
    }
}

__device__ inline bool has_positions(const AttentionCall& c) {
    return c.query_positions.data != nullptr || c.key_positions.data != nullptr;
}

/// Scores of a tile in units of log2(e), hidden ones -infinity, and the derivative of the soft-cap (where there is
/// one), as f16, two in a register: it multiplies what is rounded to 16 bits in the end.
/// seen_of(row): which columns it sees, asked for at edges. `bias_tile`: in shared memory, or null.
template <int count, bool keys_down, class SeenOf>
__device__ inline void score_tile(const AttentionCall& c, const Work& work, const Step& step, Spot<keys_down> spot,
                                  const SeenOf& seen_of, const std::uint16_t* bias_tile, float (&s)[count],
                                  std::uint32_t (&slope_of_cap)[count / 2]) {
    if (c.softcap > 0) {
        const float outside = static_cast<float>(c.softcap) * log2_e;
        float before = 0;
        each_bent(c, s, [&](int n, float bent) {
            const float slope = 1 - bent * bent;
            if (n % 2 != 0) { slope_of_cap[n / 2] = packed<Half::f16>(before, slope); }
            before = slope;
            s[n] = outside * bent;
        });
    } else {
        const float scale = static_cast<float>(c.scale * 1.4426950408889634);
#pragma unroll
        for (int n = 0; n < count; ++n) { s[n] *= scale; }
    }
    if (bias_tile != nullptr) {
        if (c.bias.dtype == DType::bf16) {
            add_bias_of_tile<count, keys_down, true>(bias_tile, s);
        } else {
            add_bias_of_tile<count, keys_down, false>(bias_tile, s);
        }
    } else if (c.bias.data != nullptr) {
        each_bias<count>(c, work, step.head, spot, [&](int n, float bias) {
            s[n] = bias == -__builtin_huge_valf() ? bias : s[n] + bias * log2_e;
        });
    }
    if (c.slopes.data != nullptr) {
        const float slope = slope_of(c, work, step.head) * log2_e;
        each_distance<count>(c, work, spot, [&](int n, float distance) { s[n] -= slope * distance; });
    }
    if (step.mixed) {
        const Bits allowed = allowed_bits<count>(c, work, step.head, spot);
#pragma unroll
        for (int n = 0; n < count; ++n) {
            if (!allowed(n)) { s[n] = -__builtin_huge_valf(); }
        }
    }
    if (step.edge) {
        const Seen seen[2] = {seen_of(spot.row), seen_of(spot.row + 8)};
#pragma unroll
        for (int n = 0; n < count; ++n) {
            const int other = spot.in_columns(n), r = n % 4 / 2;
            if (other < seen[r].begin || other >= seen[r].end) { s[n] = -__builtin_huge_valf(); }
        }
    }
}

/// The numbers of a register that packed() made.
template <Half type>
__device__ inline float unpacked(const std::uint32_t* pairs, int n) {
    const std::uint32_t pair = pairs[n / 2];
    if constexpr (type == Half::bf16) {
        return __uint_as_float(n % 2 == 0 ? pair << 16 : pair & 0xFFFF0000U);
    } else {
        return f16_to_float(static_cast<std::uint16_t>(n % 2 == 0 ? pair : pair >> 16));
    }
}

/// What dropout keeps. It needs no product, so it may be found while they run.
template <int count, bool keys_down>
__device__ inline Bits kept_beside(const AttentionCall& c, const Work& work, const Step& step, Spot<keys_down> spot) {
    return c.drops ? kept_bits<count>(c, work, step.head, spot) : Bits{{~0U, ~0U}};
}

/// Keys [begin, end) that query i sees, and queries that see key j; everything where positions are explicit.
__device__ inline Seen keys_seen(const AttentionCall& c, const Work& work, int i) {
    return has_positions(c) ? Seen{0, work.keys} : seen_by(c, work, i);
}

}  // namespace
}  // namespace heed::cuda::sm90
