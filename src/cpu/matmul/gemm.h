#pragma once
#include "cpu/simd/simd.h"

/// Matrix products of tiles, all of one form: C[m][n] (+)= sum_k A(m, k) * B[k][n] with the lanes along n. A is read
/// one 32-bit lane at a time and broadcast, B and C are read and written as vectors. Reaches 98 % of the FMA peak from
/// L1 on Zen 4 for the register tiles below.

/// After a lambda's parameters: not inlined it would find the variables it captures in memory, anew after each store.
#define HEED_INLINE_LAMBDA __attribute__((always_inline))

namespace heed::cpu {

/// How a product of 32-bit lanes is added up: one float, or a pair of bf16.
struct FloatProduct {
    static constexpr int depth_per_lane = 1;
    template <class Isa, int L>
    static HEED_INLINE F<L> add(F<L> sum, F<L> a, F<L> b) {
        return sum + a * b;
    }
};

#if defined(__AVX512BF16__)
struct Bf16Product {
    static constexpr int depth_per_lane = 2;
    template <class Isa, int L>
    static HEED_INLINE F<L> add(F<L> sum, F<L> a, F<L> b) {
        if constexpr (L == 16) { return F<L>(_mm512_dpbf16_ps(__m512(sum), __m512bh(a), __m512bh(b))); }
        if constexpr (L == 8) { return F<L>(_mm256_dpbf16_ps(__m256(sum), __m256bh(a), __m256bh(b))); }
        if constexpr (L == 4) { return F<L>(_mm_dpbf16_ps(__m128(sum), __m128bh(a), __m128bh(b))); }
    }
};
#endif

/// A product that computes on tiles (tiles.h) wants them ready for as long as it is used.
template <class Product>
concept UsesTiles = requires {
    typename Product::Session;
};
struct NoSession {};
template <class Product>
struct SessionOf {
    using Type = NoSession;
};
template <UsesTiles Product>
struct SessionOf<Product> {
    using Type = typename Product::Session;
};

/// How A lies in memory: element (m, k) at m*stride + k, or at m + k*stride.
enum class Walk { along_row, along_column };

/// Register tile: `rows(nv)` rows of nv vectors, so that sums, one row of B and a broadcast fit the registers.
template <class Isa>
struct Registers {
    static constexpr int widest = Isa::registers >= 32 ? 4 : 2;
    static constexpr int rows(int nv) {
        if (Isa::registers >= 32) { return nv == 4 ? 6 : nv == 3 ? 8 : 12; }
        return nv == 2 ? 6 : 8;
    }
};

/// What a product does besides, once for every row of B that a register tile reads: nothing.
struct NothingFused {
    HEED_INLINE void operator()() const {}
};

/// sum[m][n] += sum_k A(m,k) B[k][n]; `depth` counts 32-bit lanes.
template <class Isa, class Product, int L, int MR, int NV, Walk W, class Fused = NothingFused>
HEED_INLINE void multiply_add(const float* a, std::int64_t a_stride, const float* b, std::int64_t b_stride,
                              std::int64_t depth, F<L> (&sum)[MR][NV], Fused&& fused = {}) {
    using S = Simd<Isa, L>;
    for (std::int64_t k = 0; k < depth; ++k) {
        fused();
        F<L> row[NV];
        HEED_UNROLL
        for (int n = 0; n < NV; ++n) { row[n] = S::load(b + n * L); }
        HEED_UNROLL
        for (int m = 0; m < MR; ++m) {
            const F<L> x = S::all(W == Walk::along_row ? a[m * a_stride] : a[m]);
            HEED_UNROLL
            for (int n = 0; n < NV; ++n) { sum[m][n] = Product::template add<Isa, L>(sum[m][n], x, row[n]); }
        }
        a += W == Walk::along_row ? 1 : a_stride;
        b += b_stride;
    }
}

/// C = A B for one register tile; largest[n], where given, is raised to the largest of column n.
template <class Isa, class Product, int L, int MR, int NV, Walk W, class Fused>
HEED_INLINE void tile_set(const float* a, std::int64_t a_stride, const float* b, std::int64_t b_stride,
                          std::int64_t depth, float* c, std::int64_t c_stride, float* largest, Fused& fused) {
    F<L> sum[MR][NV] = {};
    multiply_add<Isa, Product, L, MR, NV, W>(a, a_stride, b, b_stride, depth, sum, fused);
    if (largest != nullptr) {
        using S = Simd<Isa, L>;
        HEED_UNROLL
        for (int n = 0; n < NV; ++n) {
            F<L> most = S::load(largest + n * L);
            HEED_UNROLL
            for (int m = 0; m < MR; ++m) { most = S::max(sum[m][n], most); }
            S::store(largest + n * L, most);
        }
    }
    HEED_UNROLL
    for (int m = 0; m < MR; ++m) {
        HEED_UNROLL
        for (int n = 0; n < NV; ++n) { Simd<Isa, L>::store(c + m * c_stride + n * L, sum[m][n]); }
    }
}

/// What becomes of C's old value: it is ignored, added to, or multiplied by a factor a row first. With
/// `none_then_scale` it is ignored, and the product multiplied by the factor.
enum class Old { none, keep, scale, none_then_scale };

/// What is written when the product of a register tile is complete. The old value is added last: loaded first, the
/// product would wait for it, and for the stores of the tile before.
template <class Isa, int L, int MR, int NV>
HEED_INLINE void end_sums(const F<L> (&sum)[MR][NV], float* c, std::int64_t c_stride, Old old, const float* factor) {
    using S = Simd<Isa, L>;
    const auto put = [&](auto&& finished) HEED_INLINE_LAMBDA {
        HEED_UNROLL
        for (int m = 0; m < MR; ++m) {
            HEED_UNROLL
            for (int n = 0; n < NV; ++n) {
                float* to = c + m * c_stride + n * L;
                S::store(to, finished(sum[m][n], to, m));
            }
        }
    };
    if (old == Old::keep) {
        put([](F<L> x, const float* to, int) HEED_INLINE_LAMBDA { return S::load(to) + x; });
    } else if (old == Old::scale) {
        put([&](F<L> x, const float* to, int m) HEED_INLINE_LAMBDA { return S::load(to) * S::all(factor[m]) + x; });
    } else if (old == Old::none_then_scale) {
        put([&](F<L> x, const float*, int m) HEED_INLINE_LAMBDA { return x * S::all(factor[m]); });
    } else {
        put([](F<L> x, const float*, int) HEED_INLINE_LAMBDA { return x; });
    }
}

/// C[m] = old C[m] + (A B)[m] for one register tile.
template <class Isa, class Product, int L, int MR, int NV, Walk W, class Fused>
HEED_INLINE void tile_add(const float* a, std::int64_t a_stride, const float* b, std::int64_t b_stride,
                          std::int64_t depth, float* c, std::int64_t c_stride, Old old, const float* factor,
                          Fused& fused) {
    F<L> sum[MR][NV] = {};
    multiply_add<Isa, Product, L, MR, NV, W>(a, a_stride, b, b_stride, depth, sum, fused);
    end_sums<Isa, L>(sum, c, c_stride, old, factor);
}

/// Calls function.template operator()<n>() for the run-time n in [1, Most].
template <int Most, class Function>
HEED_INLINE void with_constant(int n, Function&& function) {
    if constexpr (Most > 1) {
        if (n != Most) {
            with_constant<Most - 1>(n, function);
            return;
        }
    }
    function.template operator()<Most>();
}

/// C[m][n] = A B over m in [0, rows) and `vectors` vectors of L lanes along n; largest as in tile_set.
template <class Isa, class Product, int L, Walk W, class Fused = NothingFused>
HEED_NOINLINE void matrix_set(const float* a, std::int64_t a_stride, const float* b, std::int64_t b_stride,
                              std::int64_t depth, float* c, std::int64_t c_stride, std::int64_t rows, int vectors,
                              float* largest = nullptr, Fused&& fused = {}) {
    if constexpr (UsesTiles<Product> && L == 16) {
        if (Product::template set<Isa, W>(a, a_stride, b, b_stride, depth, c, c_stride, rows, vectors, largest,
                                          fused)) {
            return;
        }
    }
    const std::int64_t a_step = W == Walk::along_row ? a_stride : 1;
    constexpr int step = Registers<Isa>::widest;
    for (int first = 0; first < vectors; first += step) {
        const int count = vectors - first < step ? vectors - first : step;
        float* most = largest == nullptr ? nullptr : largest + first * L;
        with_constant<Registers<Isa>::widest>(count, [&]<int NV>() HEED_INLINE_LAMBDA {
            // Products of pairs are over sooner: fewer rows, so that what is stored goes in smaller bursts.
            constexpr int MR = Product::depth_per_lane == 2 && NV == 4 ? 4 : Registers<Isa>::rows(NV);
            std::int64_t m = 0;
            for (; m + MR <= rows; m += MR) {
                tile_set<Isa, Product, L, MR, NV, W>(a + m * a_step, a_stride, b + first * L, b_stride, depth,
                                                     c + m * c_stride + first * L, c_stride, most, fused);
            }
            if (m < rows) {
                with_constant<MR - 1>(static_cast<int>(rows - m), [&]<int Rest>() HEED_INLINE_LAMBDA {
                    tile_set<Isa, Product, L, Rest, NV, W>(a + m * a_step, a_stride, b + first * L, b_stride, depth,
                                                           c + m * c_stride + first * L, c_stride, most, fused);
                });
            }
        });
    }
}

/// C[m] = old C[m] + A B over the same ranges. span(m, count) gives the range [begin, end) of k that rows
/// m .. m+count need; the rest of A is known to be 0 there.
template <class Isa, class Product, int L, Walk W, class Span, class Fused = NothingFused>
HEED_NOINLINE void matrix_add(const float* a, std::int64_t a_stride, const float* b, std::int64_t b_stride, float* c,
                              std::int64_t c_stride, std::int64_t rows, int vectors, Old old, const float* factor,
                              Span span, Fused&& fused = {}) {
    if constexpr (UsesTiles<Product> && L == 16) {
        Product::template add_to<Isa, W>(a, a_stride, b, b_stride, c, c_stride, rows, vectors, old, factor, span,
                                         fused);
        return;
    }
    const std::int64_t a_step = W == Walk::along_row ? a_stride : 1;
    const std::int64_t a_depth = W == Walk::along_row ? 1 : a_stride;
    constexpr int step = Registers<Isa>::widest;
    for (int first = 0; first < vectors; first += step) {
        const int count = vectors - first < step ? vectors - first : step;
        with_constant<Registers<Isa>::widest>(count, [&]<int NV>() HEED_INLINE_LAMBDA {
            constexpr int MR = Registers<Isa>::rows(NV);
            const auto run = [&]<int Rows>(std::int64_t m) HEED_INLINE_LAMBDA {
                const auto [begin, end] = span(m, Rows);
                tile_add<Isa, Product, L, Rows, NV, W>(
                    a + m * a_step + begin * a_depth, a_stride, b + first * L + begin * b_stride, b_stride, end - begin,
                    c + m * c_stride + first * L, c_stride, old, factor == nullptr ? nullptr : factor + m, fused);
            };
            std::int64_t m = 0;
            for (; m + MR <= rows; m += MR) { run.template operator()<MR>(m); }
            if (m < rows) {
                with_constant<MR - 1>(static_cast<int>(rows - m),
                                      [&]<int Rest>() HEED_INLINE_LAMBDA { run.template operator()<Rest>(m); });
            }
        });
    }
}

}  // namespace heed::cpu
