#pragma once
#include "cpu/attention/scores.h"
#include "cpu/kv_rows.h"

/// Queries, keys and values on their way into the products.

namespace heed::cpu {

/// Hands out aligned pieces of one allocation; with no memory behind it, it only counts.
struct Arena {
    char* memory;
    std::size_t used = 0;

    template <class T>
    HEED_INLINE T* take(std::size_t count) {
        T* piece = memory == nullptr ? nullptr : reinterpret_cast<T*>(memory + used);
        used += (count * sizeof(T) + 63) / 64 * 64;
        return piece;
    }
};

struct PackScratch {
    float* k;
    float* v;

    static HEED_INLINE PackScratch take(Arena& arena, std::int64_t k, std::int64_t v) {
        return {arena.take<float>(static_cast<std::size_t>(k)), arena.take<float>(static_cast<std::size_t>(v))};
    }
};

/// Sizes in 32-bit lanes.
template <class Isa, class Product>
struct Sizes {
    std::int64_t keys;          ///< of a block
    std::int64_t depth;         ///< of a query or key row in the score product
    std::int64_t key_stride;    ///< of a packed key row: whole vectors
    std::int64_t row_lanes;     ///< of a staged row of queries
    std::int64_t value_stride;  ///< of a row of sums and of packed values
    HEED_INLINE explicit Sizes(const Call& call)
        : keys(call.tile_keys),
          depth((call.head_size + Product::depth_per_lane - 1) / Product::depth_per_lane),
          key_stride(round_up(depth, Isa::lanes)),
          row_lanes(round_up(call.head_size, 16)),
          value_stride(round_up(call.value_size, Isa::lanes)) {}
};

/// Calls function.template operator()<L>() for the tile's number of lanes.
template <class Isa, class Function>
HEED_INLINE void with_lanes(int lanes, Function&& function) {
    if constexpr (Isa::lanes >= 16) {
        if (lanes == 16) { return function.template operator()<16>(); }
    }
    if constexpr (Isa::lanes >= 8) {
        if (lanes == 8) { return function.template operator()<8>(); }
    }
    function.template operator()<4>();
}

/// False where rows are a multiple of 512 bytes apart and so compete for the same cache sets: those are copied.
HEED_INLINE bool avoids_aliasing(std::int64_t row_bytes, std::int64_t stride_bytes) {
    return stride_bytes <= row_bytes || stride_bytes % 512 != 0;
}

/// Prefetches the rows that come next, one cache line each time it is called, between products, where that costs least.
/// All at once they would fill the miss buffers, and everything would wait for them. At most `Most` runs of rows.
template <int Most>
class LinePrefetch {
public:
    HEED_INLINE void forget() {
        count_ = now_ = 0;
        at_ = 0;
    }
    HEED_INLINE void add_run(const char* first, std::int64_t step, std::int64_t bytes, std::int64_t rows) {
        runs_[count_++] = {first, step, bytes, rows};
        // The first access to a page whose address is not in the TLB costs hundreds of cycles, and products soon stall.
        // Prefetched together, pages share that wait: so one line of each is prefetched here.
        constexpr std::int64_t page = 4096;
        const std::int64_t size = step * (rows - 1) + bytes;
        for (std::int64_t at = 0; at < size; at += larger(page, step)) { __builtin_prefetch(first + at, 0, 2); }
    }
    HEED_INLINE void operator()() {
        if (now_ == count_) { return; }
        Run& run = runs_[now_];
        __builtin_prefetch(run.next + at_, 0, 2);
        at_ += 64;
        if (at_ >= run.bytes) {
            at_ = 0;
            run.next += run.step;
            if (--run.rows == 0) { ++now_; }
        }
    }
    /// What is left, in order, as memory likes it.
    HEED_INLINE void rest() {
        while (now_ < count_) { (*this)(); }
        now_ = count_ = 0;
    }

private:
    struct Run {
        const char* next;
        std::int64_t step, bytes, rows;
    };
    Run runs_[Most];
    int count_ = 0;
    int now_ = 0;
    std::int64_t at_ = 0;
};

/// Keys, values, queries and rows of out of the forward pass.
class KeyPrefetch : public LinePrefetch<2 + 2 * most_task_tiles> {
public:
    HEED_INLINE void add(const HeadRows& from, std::int64_t begin, std::int64_t count, std::int64_t size) {
        if (from.column != 1 || count <= 0 || !from.is_run(begin, count)) { return; }
        add_run(from.row(begin).data, from.row_bytes, from.bytes_of(size), count);
    }
    HEED_INLINE void add(const Tensor4& from, const char* first, std::int64_t count, std::int64_t size) {
        if (from.column != 1 || count <= 0) { return; }
        add_run(first, from.row * from.element_size, size * from.element_size, count);
    }
};

/// q[depth][stride] = the tile's query rows, transposed.
template <class Isa, class Product>
void pack_queries(const Call& call, const RowTile& tile, float* staging, float* q) {
    const Sizes<Isa, Product> z(call);
    const Tensor4& from = call.q;
    const char* place[most_rows];
    for (int r = 0; r < tile.rows; ++r) { place[r] = row_address(from, tile, r); }
    const auto address = [&](std::int64_t r) { return place[r]; };
    constexpr bool pairs = Product::depth_per_lane == 2;
    // Transposing jumps from row to row, which the hardware prefetcher does not foresee: prefetched in order, rows
    // arrive twice as fast. For short sequences the extra instructions cost more than they gain.
    const std::int64_t bytes = from.column == 1 ? call.head_size * from.element_size : 0;
    for (int r = 0; tile.rows == most_rows && r < most_rows; ++r) {
        for (std::int64_t at = 0; at < bytes; at += 64) { __builtin_prefetch(address(r) + at, 0, 3); }
    }
    bool direct = from.column == 1 && (pairs ? call.head_size % 2 == 0 : from.dtype == DType::f32);
    for (int r = 0; pairs && r < tile.rows; ++r) {
        direct = direct && reinterpret_cast<std::uintptr_t>(address(r)) % 4 == 0;  // pairs are read as words
    }
    if (!direct) {
        for (int r = 0; r < tile.rows; ++r) {
            if constexpr (pairs) {
                copy_pairs<Isa>(address(r), from.column, call.head_size, staging + r * z.row_lanes);
            } else {
                load_row<Isa>(from.dtype, address(r), from.column, call.head_size, staging + r * z.row_lanes);
            }
        }
    }
    with_lanes<Isa>(tile.lanes, [&]<int L>() {
        const std::int64_t stride = tile.lanes * tile.vectors;
        if (direct) {
            transpose_rows<Isa, L>([&](std::int64_t r) { return reinterpret_cast<const float*>(address(r)); },
                                   tile.rows, z.depth, q, stride);
        } else {
            transpose_rows<Isa, L>([&](std::int64_t r) { return staging + r * z.row_lanes; }, tile.rows, z.depth, q,
                                   stride);
        }
    });
}

template <class Isa, class Product>
void pack_keys(const Call& call, const Sequence& s, std::int64_t g, const PackScratch& scratch, KeyBlock& block) {
    const Sizes<Isa, Product> z(call);
    const HeadRows k = key_rows(call, s, g);
    const bool in_place = k.column == 1 && k.is_run(block.begin, block.count) &&
                          avoids_aliasing(call.head_size * k.element_bytes(), k.row_bytes);
    const char* first = k.row(block.begin).data;
    block.k = scratch.k;
    block.k_stride = z.key_stride;
    if constexpr (Product::depth_per_lane == 2) {
        const bool aligned = reinterpret_cast<std::uintptr_t>(first) % 4 == 0 && k.row_bytes % 4 == 0;
        if (in_place && aligned && call.head_size % 2 == 0) {
            block.k = reinterpret_cast<const float*>(first);
            block.k_stride = k.row_bytes / 4;
            return;
        }
        k.for_each(block.begin, block.count, [&](std::int64_t j, const char* row, const float*) {
            copy_pairs<Isa>(row, k.column, call.head_size, scratch.k + j * z.key_stride);
        });
    } else {
        if (in_place && k.storage == KvStorage::f32) {
            block.k = reinterpret_cast<const float*>(first);
            block.k_stride = k.row_bytes / 4;
            return;
        }
        k.for_each(block.begin, block.count, [&](std::int64_t j, const char* row, const float* scale) {
            load_kv_row<Isa>(k, row, scale, call.head_size, scratch.k + j * z.key_stride);
        });
    }
}

template <class Isa, class Product>
void pack_values(const Call& call, const Sequence& s, std::int64_t g, float* to_v, KeyBlock& block) {
    const Sizes<Isa, Product> z(call);
    const HeadRows v = value_rows(call, s, g);
    block.values_finite = -1;
    block.v = to_v;
    block.v_stride = z.value_stride;
    if constexpr (Product::depth_per_lane == 2) {
        const char* even = nullptr;
        v.for_each(block.begin, block.count, [&](std::int64_t j, const char* row, const float*) {
            float* to = to_v + j / 2 * z.value_stride;
            if (j % 2 != 0) { interleave_rows<Isa>(even, row, v.column, call.value_size, z.value_stride, to); }
            if (j % 2 == 0 && j + 1 == block.count) {
                interleave_rows<Isa>(row, nullptr, v.column, call.value_size, z.value_stride, to);
            }
            even = row;
        });
    } else {
        if (v.storage == KvStorage::f32 && v.column == 1 && call.value_size == z.value_stride &&
            v.is_run(block.begin, block.count) && avoids_aliasing(call.value_size * 4, v.row_bytes)) {
            block.v = reinterpret_cast<const float*>(v.row(block.begin).data);
            block.v_stride = v.row_bytes / 4;
            return;
        }
        v.for_each(block.begin, block.count, [&](std::int64_t j, const char* row, const float* scale) {
            float* to = to_v + j * z.value_stride;
            load_kv_row<Isa>(v, row, scale, call.value_size, to);
            for (std::int64_t e = call.value_size; e < z.value_stride; ++e) { to[e] = 0; }
        });
    }
}

/// Value (j, e) of a block.
template <class Product>
HEED_INLINE float value_at(const KeyBlock& block, std::int64_t j, std::int64_t e) {
    if constexpr (Product::depth_per_lane == 2) {
        const auto* words = reinterpret_cast<const std::uint16_t*>(block.v + j / 2 * block.v_stride);
        return widen_bf16(words[2 * e + j % 2]);
    } else {
        return block.v[j * block.v_stride + e];
    }
}

/// Are `count` 32-bit lanes free of infinities and NaN?
template <class Isa, class Product>
HEED_INLINE bool all_finite(const float* from, std::int64_t count) {
    // An exponent of all ones; of pairs of bf16 each half has its own.
    constexpr int L = Isa::lanes;
    const U<L> exponent = Simd<Isa, L>::all(0x7f800000U);
    I<L> bad = {};
    std::uint32_t bad_rest = 0;
    std::int64_t n = 0;
    for (; n + L <= count; n += L) {
        const auto word = U<L>(Simd<Isa, L>::load(from + n));
        bad |= (word & exponent) == exponent;
        if constexpr (Product::depth_per_lane == 2) { bad |= ((word << 16) & exponent) == exponent; }
    }
    for (; n < count; ++n) {
        const std::uint32_t word = bits_of(from[n]);
        bad_rest |= (word & 0x7f800000U) == 0x7f800000U ? 1U : 0U;
        if constexpr (Product::depth_per_lane == 2) { bad_rest |= (word & 0x7f80U) == 0x7f80U ? 1U : 0U; }
    }
    return bad_rest == 0 && Simd<Isa, L>::every(bad == I<L>{});
}

/// Looked up once a block: 0 * NaN is NaN, so a tile that hides something needs finite values or care.
template <class Isa, class Product>
bool values_finite(const Call& call, KeyBlock& block) {
    if (block.values_finite < 0) {
        const std::int64_t rows = (block.count + Product::depth_per_lane - 1) / Product::depth_per_lane;
        bool finite = true;
        for (std::int64_t j = 0; j < rows && finite; ++j) {
            finite = all_finite<Isa, Product>(block.v + j * block.v_stride, call.value_size);
        }
        block.values_finite = finite ? 1 : 0;
    }
    return block.values_finite == 1;
}

/// sums = alpha sums + weights V, skipping what is hidden.
template <class Isa, class Product>
void nan_safe_product(const Call& call, const RowTile& tile, const KeyBlock& block, const float* weights,
                      const float* alpha, float* sums) {
    const Sizes<Isa, Product> z(call);
    const std::int64_t stride = tile.lanes * tile.vectors;
    const std::int64_t begin = larger<std::int64_t>(tile.begin - block.begin, 0);
    const std::int64_t end = smaller<std::int64_t>(tile.end - block.begin, block.count);
    for (int r = 0; r < tile.rows; ++r) {
        float* sum = sums + r * z.value_stride;
        for (std::int64_t e = 0; e < call.value_size; ++e) { sum[e] *= alpha[r]; }
        for (std::int64_t j = begin; j < end; ++j) {
            const float w = weights[j * stride + r];
            if (bits_of(w) == 0x80000000U) { continue; }
            for (std::int64_t e = 0; e < call.value_size; ++e) { sum[e] += w * value_at<Product>(block, j, e); }
        }
    }
}

/// Weights of keys 2n and 2n+1 side by side as bf16: pairs[n][row].
template <class Isa, int L>
void pair_weights(const RowTile& tile, const KeyBlock& block, const float* weights, float* pairs) {
    using S = Simd<Isa, L>;
    const std::int64_t stride = tile.lanes * tile.vectors;
    const std::int64_t begin = larger<std::int64_t>(tile.begin - block.begin, 0) / 2 * 2;
    const std::int64_t end = smaller<std::int64_t>(tile.end - block.begin, block.count);
    const std::int64_t written = larger<std::int64_t>(tile.begin - block.begin, 0);
    for (std::int64_t j = begin; j < end; j += 2) {
        for (int n = 0; n < tile.vectors; ++n) {
            const F<L> a = j >= written ? S::load(weights + j * stride + n * L) : F<L>{};
            const F<L> b = j + 1 < end ? S::load(weights + (j + 1) * stride + n * L) : F<L>{};
            S::store(pairs + j / 2 * stride + n * L, S::pair_bf16(a, b));
        }
    }
}

}  // namespace heed::cpu
