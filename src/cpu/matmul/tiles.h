#pragma once
#include "cpu/matmul/gemm.h"
#include "cpu/simd/convert.h"

/// The products of gemm.h on tiles of 16 rows of 64 bytes (Intel's AMX). What the kernels hand to those products is
/// what tiles read: rows of pairs of bf16 along the depth are the left operand as they lie (Walk::along_row), or after
/// squares of 16 x 16 lanes are transposed (Walk::along_column); rows of pairs interleaved along the depth are the
/// right one. Whatever does not fill a tile is padded with zeros in a copy: nothing outside the operands is read.

namespace heed::cpu {

/// Lanes of 32 bits in a row of a tile, and rows of a tile.
constexpr int tile_side = 16;

#if defined(__AMX_TILE__) && defined(__AMX_BF16__)
/// The registers of the CPU. Numbers 0 to 3 are sums. Assembly, as the compiler's own functions take numbers written
/// out and do not say that tiles read memory: GCC 12 then leaves out the stores before.
struct AmxTiles {
    /// While it lives, the calling thread's tiles have their size; afterwards they are given back, so that switching to
    /// another thread has less to save.
    struct Session {
        HEED_INLINE Session() {
            alignas(64) unsigned char config[64] = {};
            config[0] = 1;  // palette
            for (int t = 0; t < 8; ++t) {
                config[16 + 2 * t] = 64;     // bytes of a row
                config[48 + t] = tile_side;  // rows
            }
            asm volatile("ldtilecfg %0" ::"m"(config) : "memory");
        }
        HEED_INLINE ~Session() { asm volatile("tilerelease" ::: "memory"); }
        Session(const Session&) = delete;
        Session& operator=(const Session&) = delete;
    };
    template <int T>
    static HEED_INLINE void zero() {
        asm volatile("tilezero %%tmm%c0" ::"i"(T));
    }
    template <int T>
    static HEED_INLINE void load(const float* from, std::int64_t stride) {
        asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride * 4), "i"(T) : "memory");
    }
    template <int T>
    static HEED_INLINE void store(float* to, std::int64_t stride) {
        asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride * 4), "i"(T) : "memory");
    }
    template <int C, int A, int B>
    static HEED_INLINE void multiply() {
        asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
    }
};
#endif

/// The same in plain C++: what the instructions compute, for CPUs without them.
struct ModelTiles {
    struct Session {
        Session() = default;
        ~Session() {}
    };
    template <int T>
    static void zero() {
        for (float& x : tile(T)) { x = 0; }
    }
    template <int T>
    static void load(const float* from, std::int64_t stride) {
        for (int row = 0; row < tile_side; ++row) {
            __builtin_memcpy(tile(T) + row * tile_side, from + row * stride, tile_side * 4);
        }
    }
    template <int T>
    static void store(float* to, std::int64_t stride) {
        for (int row = 0; row < tile_side; ++row) {
            __builtin_memcpy(to + row * stride, tile(T) + row * tile_side, tile_side * 4);
        }
    }
    /// TDPBF16PS: sums of products of pairs, one after the other along the depth.
    template <int C, int A, int B>
    static void multiply() {
        const auto half = [](float lane, int which) {
            const std::uint32_t bits = bits_of(lane);
            return __builtin_bit_cast(float, which == 0 ? bits << 16 : bits & 0xFFFF0000U);
        };
        for (int m = 0; m < tile_side; ++m) {
            for (int k = 0; k < tile_side; ++k) {
                const float a = tile(A)[m * tile_side + k];
                for (int n = 0; n < tile_side; ++n) {
                    const float b = tile(B)[k * tile_side + n];
                    float& sum = tile(C)[m * tile_side + n];
                    sum += half(a, 0) * half(b, 0);
                    sum += half(a, 1) * half(b, 1);
                }
            }
        }
    }

private:
    using Tile = float[tile_side * tile_side];
    static Tile& tile(int number) {
        static thread_local Tile tiles[8];
        return tiles[number];
    }
};

/// to[rows][16] = rows [0, count) of `lanes` lanes each, zeros around them.
template <class Isa>
HEED_INLINE void pad_tile(const float* from, std::int64_t stride, std::int64_t count, std::int64_t lanes, float* to) {
    using S = Simd<Isa, tile_side>;
    for (std::int64_t r = 0; r < tile_side; ++r) {
        if (r < count && lanes >= tile_side) {
            S::store(to + r * tile_side, S::load(from + r * stride));
            continue;
        }
        S::store(to + r * tile_side, F<tile_side>{});
        if (r < count) { __builtin_memcpy(to + r * tile_side, from + r * stride, static_cast<std::size_t>(lanes) * 4); }
    }
}

/// to[16][16]: columns of rows [0, count) become rows, zeros after them.
template <class Isa>
HEED_INLINE void transpose_tile(const float* from, std::int64_t stride, std::int64_t count, float* to) {
    using S = Simd<Isa, tile_side>;
    F<tile_side> square[tile_side];
    if (count >= tile_side) {
        HEED_UNROLL
        for (int n = 0; n < tile_side; ++n) { square[n] = S::load(from + n * stride); }
    } else {
        for (int n = 0; n < tile_side; ++n) { square[n] = n < count ? S::load(from + n * stride) : F<tile_side>{}; }
    }
    S::transpose(square);
    HEED_UNROLL
    for (int n = 0; n < tile_side; ++n) { S::store(to + n * tile_side, square[n]); }
}

/// matrix_set of at least 16 rows, along rows of A.
template <class Isa, class Tiles>
class TileSet {
public:
    const float* a;
    std::int64_t a_stride;
    const float* b;
    std::int64_t b_stride;
    std::int64_t depth;
    float* c;
    std::int64_t c_stride;
    std::int64_t rows;
    int vectors;
    float* largest;

    template <class Fused>
    HEED_INLINE void run(Fused& fused) {
        whole_ = depth / tile_side * tile_side;
        const std::int64_t rest = depth - whole_;
        for (int n = 0; rest > 0 && n < vectors; ++n) {
            pad_tile<Isa>(b + whole_ * b_stride + n * tile_side, b_stride, rest, tile_side, b_rest_[n]);
        }
        // Two tiles of rows at a time. The last may begin again with rows that were done: it sets the same numbers.
        std::int64_t raised = 0;
        for (std::int64_t m = 0; m < rows; m += 2 * tile_side) {
            const bool two = m + tile_side < rows;
            first_ = smaller(m, rows - tile_side);
            second_ = smaller(m + tile_side, rows - tile_side);
            if (rest > 0) {
                pad_tile<Isa>(a + first_ * a_stride + whole_, a_stride, tile_side, rest, a_rest_[0]);
                if (two) { pad_tile<Isa>(a + second_ * a_stride + whole_, a_stride, tile_side, rest, a_rest_[1]); }
            }
            int n = 0;
            for (; n + 2 <= vectors; n += 2) { two ? block<2, 2>(n) : block<1, 2>(n); }
            if (n < vectors) { two ? block<2, 1>(n) : block<1, 1>(n); }
            for (int r = 0; r < tile_side; ++r) { fused(); }
            // Of the rows before these, which are in memory by now.
            raise(raised, m);
            raised = m;
        }
        raise(raised, rows);
    }

private:
    template <int MT, int NT>
    HEED_INLINE void block(int n) {
        Tiles::template zero<0>();
        if constexpr (NT == 2) { Tiles::template zero<1>(); }
        if constexpr (MT == 2) { Tiles::template zero<2>(); }
        if constexpr (MT == 2 && NT == 2) { Tiles::template zero<3>(); }
        for (std::int64_t k = 0; k < whole_; k += tile_side) {
            step<MT, NT>(a + first_ * a_stride + k, a + second_ * a_stride + k, a_stride,
                         b + k * b_stride + n * tile_side, b + k * b_stride + (n + 1) * tile_side, b_stride);
        }
        if (whole_ < depth) {
            step<MT, NT>(a_rest_[0], a_rest_[1], tile_side, b_rest_[n], b_rest_[NT == 2 ? n + 1 : n], tile_side);
        }
        float* to = c + n * tile_side;
        Tiles::template store<0>(to + first_ * c_stride, c_stride);
        if constexpr (NT == 2) { Tiles::template store<1>(to + first_ * c_stride + tile_side, c_stride); }
        if constexpr (MT == 2) { Tiles::template store<2>(to + second_ * c_stride, c_stride); }
        if constexpr (MT == 2 && NT == 2) { Tiles::template store<3>(to + second_ * c_stride + tile_side, c_stride); }
    }

    template <int MT, int NT>
    static HEED_INLINE void step(const float* a0, const float* a1, std::int64_t a_step, const float* b0,
                                 const float* b1, std::int64_t b_step) {
        Tiles::template load<6>(b0, b_step);
        Tiles::template load<4>(a0, a_step);
        Tiles::template multiply<0, 4, 6>();
        if constexpr (NT == 2) {
            Tiles::template load<7>(b1, b_step);
            Tiles::template multiply<1, 4, 7>();
        }
        if constexpr (MT == 2) {
            Tiles::template load<5>(a1, a_step);
            Tiles::template multiply<2, 5, 6>();
        }
        if constexpr (MT == 2 && NT == 2) { Tiles::template multiply<3, 5, 7>(); }
    }

    HEED_INLINE void raise(std::int64_t begin, std::int64_t end) const {
        using S = Simd<Isa, tile_side>;
        if (largest == nullptr || begin == end) { return; }
        for (int n = 0; n < vectors; ++n) {
            const float* from = c + n * tile_side;
            F<tile_side> most[4] = {S::load(largest + n * tile_side)};
            most[1] = most[2] = most[3] = most[0];
            std::int64_t m = begin;
            for (; m + 4 <= end; m += 4) {
                HEED_UNROLL
                for (int r = 0; r < 4; ++r) { most[r] = S::max(S::load(from + (m + r) * c_stride), most[r]); }
            }
            for (; m < end; ++m) { most[0] = S::max(S::load(from + m * c_stride), most[0]); }
            S::store(largest + n * tile_side, S::max(S::max(most[0], most[1]), S::max(most[2], most[3])));
        }
    }

    std::int64_t whole_ = 0;  ///< depth in whole tiles
    std::int64_t first_ = 0, second_ = 0;
    alignas(64) float a_rest_[2][tile_side * tile_side];
    alignas(64) float b_rest_[4][tile_side * tile_side];
};

/// matrix_add, a tile of rows at a time against four of columns.
template <class Isa, class Tiles, Walk W>
class TileAdd {
public:
    const float* a;
    std::int64_t a_stride;
    const float* b;
    std::int64_t b_stride;
    float* c;
    std::int64_t c_stride;
    std::int64_t rows;
    int vectors;
    Old old;
    const float* factor;

    template <class Span, class Fused>
    HEED_INLINE void run(Span& span, Fused& fused) {
        for (std::int64_t m = 0; m < rows; m += tile_side) {
            const auto [begin, end] = span(m, static_cast<int>(smaller<std::int64_t>(tile_side, rows - m)));
            Part part{m, smaller<std::int64_t>(tile_side, rows - m), begin, end, old};
            if (begin >= end) {
                part.end = begin;
                columns(part, fused);
                continue;
            }
            const bool factor_last = old == Old::none_then_scale;
            for (std::int64_t k = begin; k < end; k += most_depth) {
                part.begin = k;
                part.end = smaller(end, k + most_depth);
                // All but the last product are set or added to; the factor of the old value comes with the first.
                if (factor_last) { part.how = k == begin ? Old::none : Old::keep; }
                if (factor_last && k == begin && part.end == end) { part.how = Old::none_then_scale; }
                if (!factor_last && k > begin) { part.how = Old::keep; }
                take_rows(part);
                columns(part, fused);
                if (factor_last && part.end == end && k > begin) {
                    put_waiting();
                    multiply_rows(part);
                }
            }
        }
        put_waiting();
    }

private:
    static constexpr std::int64_t most_tiles = 8;
    static constexpr std::int64_t most_depth = most_tiles * tile_side;
    struct Part {
        std::int64_t m, count;
        std::int64_t begin, end;
        Old how;
    };

    /// A's tiles of these rows, where they cannot be read where they lie.
    HEED_INLINE void take_rows(const Part& part) {
        for (std::int64_t k = part.begin, t = 0; k < part.end; k += tile_side, ++t) {
            const std::int64_t depth = smaller<std::int64_t>(tile_side, part.end - k);
            if constexpr (W == Walk::along_column) {
                transpose_tile<Isa>(a + part.m + k * a_stride, a_stride, depth, turned_[t]);
                left_[t] = turned_[t];
                left_stride_[t] = tile_side;
            } else if (depth < tile_side || part.count < tile_side) {
                pad_tile<Isa>(a + part.m * a_stride + k, a_stride, part.count, depth, turned_[t]);
                left_[t] = turned_[t];
                left_stride_[t] = tile_side;
            } else {
                left_[t] = a + part.m * a_stride + k;
                left_stride_[t] = a_stride;
            }
        }
    }

    template <class Fused>
    HEED_INLINE void columns(const Part& part, Fused& fused) {
        for (int n = 0; n < vectors; n += 4) {
            switch (smaller(4, vectors - n)) {
                case 4: block<4>(part, n, fused); break;
                case 3: block<3>(part, n, fused); break;
                case 2: block<2>(part, n, fused); break;
                default: block<1>(part, n, fused); break;
            }
        }
    }

    template <int NT, class Fused>
    HEED_INLINE void block(const Part& part, int n, Fused& fused) {
        float* to = c + part.m * c_stride + n * tile_side;
        // Whole tiles of sums stay where they are; others, and those with a factor, go through a copy.
        const bool direct = part.count == tile_side && (part.how == Old::none || part.how == Old::keep);
        if (direct) { put_waiting(); }  // it may be these sums that wait
        each<NT>([&]<int T>() HEED_INLINE_LAMBDA {
            if (direct && part.how == Old::keep) {
                Tiles::template load<T>(to + T * tile_side, c_stride);
            } else {
                Tiles::template zero<T>();
            }
        });
        std::int64_t k = part.begin;
        std::int64_t t = 0;
        for (; k + tile_side <= part.end; k += tile_side, ++t) {
            step<NT>(t, b + k * b_stride + n * tile_side, b_stride, tile_side);
            for (int r = 0; r < tile_side / 2; ++r) { fused(); }
        }
        if (k < part.end) {
            for (int v = 0; v < NT; ++v) {
                pad_tile<Isa>(b + k * b_stride + (n + v) * tile_side, b_stride, part.end - k, tile_side, b_rest_[v]);
            }
            step<NT>(t, b_rest_[0], tile_side, tile_side * tile_side);
        }
        if (direct) {
            each<NT>([&]<int T>() HEED_INLINE_LAMBDA { Tiles::template store<T>(to + T * tile_side, c_stride); });
            return;
        }
        // Read a block later, when they have arrived: the vectors' work overlaps with the tiles' next products.
        each<NT>([&]<int T>() HEED_INLINE_LAMBDA { Tiles::template store<T>(sums_[turn_][T], tile_side); });
        put_waiting();
        waiting_ = {part, to, NT, turn_};
        turn_ = 1 - turn_;
    }

    HEED_INLINE void put_waiting() {
        for (int v = 0; v < waiting_.tiles; ++v) {
            put(waiting_.part, sums_[waiting_.slot][v], waiting_.to + v * tile_side);
        }
        waiting_.tiles = 0;
    }

    template <int NT>
    HEED_INLINE void step(std::int64_t t, const float* from, std::int64_t stride, std::int64_t step) const {
        Tiles::template load<4>(left_[t], left_stride_[t]);
        each<NT>([&]<int T>() HEED_INLINE_LAMBDA {
            Tiles::template load<5 + T % 3>(from + T * step, stride);
            Tiles::template multiply<T, 4, 5 + T % 3>();
        });
    }

    HEED_INLINE void put(const Part& part, const float* sums, float* to) const {
        using S = Simd<Isa, tile_side>;
        const auto each_row = [&](auto&& finished) HEED_INLINE_LAMBDA {
            for (std::int64_t r = 0; r < part.count; ++r) {
                float* place = to + r * c_stride;
                S::store(place, finished(S::load(sums + r * tile_side), place, r));
            }
        };
        const float* factors = factor + part.m;
        if (part.how == Old::scale) {
            each_row([&](F<tile_side> sum, const float* old_sum, std::int64_t r)
                         HEED_INLINE_LAMBDA { return S::load(old_sum) * S::all(factors[r]) + sum; });
        } else if (part.how == Old::keep) {
            each_row([](F<tile_side> sum, const float* old_sum, std::int64_t)
                         HEED_INLINE_LAMBDA { return S::load(old_sum) + sum; });
        } else if (part.how == Old::none_then_scale) {
            each_row([&](F<tile_side> sum, const float*, std::int64_t r)
                         HEED_INLINE_LAMBDA { return sum * S::all(factors[r]); });
        } else {
            each_row([](F<tile_side> sum, const float*, std::int64_t) HEED_INLINE_LAMBDA { return sum; });
        }
    }

    HEED_INLINE void multiply_rows(const Part& part) const {
        using S = Simd<Isa, tile_side>;
        for (std::int64_t r = 0; r < part.count; ++r) {
            for (int v = 0; v < vectors; ++v) {
                float* place = c + (part.m + r) * c_stride + v * tile_side;
                S::store(place, S::load(place) * S::all(factor[part.m + r]));
            }
        }
    }

    template <int NT, class Function>
    static HEED_INLINE void each(Function&& function) {
        function.template operator()<0>();
        if constexpr (NT > 1) { function.template operator()<1>(); }
        if constexpr (NT > 2) { function.template operator()<2>(); }
        if constexpr (NT > 3) { function.template operator()<3>(); }
    }

    const float* left_[most_tiles];
    std::int64_t left_stride_[most_tiles];
    alignas(64) float turned_[most_tiles][tile_side * tile_side];
    alignas(64) float b_rest_[4][tile_side * tile_side];
    /// Products that are not yet where they go.
    struct Waiting {
        Part part{};
        float* to = nullptr;
        int tiles = 0;
        int slot = 0;
    };
    Waiting waiting_;
    int turn_ = 0;
    alignas(64) float sums_[2][4][tile_side * tile_side];
};

/// Products of pairs of bf16 on tiles; where vectors are shorter, or rows too few, as `Pairs` does them.
template <class Pairs, class Tiles>
struct TileProduct : Pairs {
    using Session = typename Tiles::Session;

    /// matrix_set; false: not for tiles.
    template <class Isa, Walk W, class Fused>
    static HEED_INLINE bool set(const float* a, std::int64_t a_stride, const float* b, std::int64_t b_stride,
                                std::int64_t depth, float* c, std::int64_t c_stride, std::int64_t rows, int vectors,
                                float* largest, Fused& fused) {
        if (W != Walk::along_row || rows < tile_side || vectors > 4) { return false; }
        TileSet<Isa, Tiles> product;
        product.a = a;
        product.a_stride = a_stride;
        product.b = b;
        product.b_stride = b_stride;
        product.depth = depth;
        product.c = c;
        product.c_stride = c_stride;
        product.rows = rows;
        product.vectors = vectors;
        product.largest = largest;
        product.run(fused);
        return true;
    }

    /// matrix_add.
    template <class Isa, Walk W, class Span, class Fused>
    static HEED_INLINE void add_to(const float* a, std::int64_t a_stride, const float* b, std::int64_t b_stride,
                                   float* c, std::int64_t c_stride, std::int64_t rows, int vectors, Old old,
                                   const float* factor, Span& span, Fused& fused) {
        TileAdd<Isa, Tiles, W> product;
        product.a = a;
        product.a_stride = a_stride;
        product.b = b;
        product.b_stride = b_stride;
        product.c = c;
        product.c_stride = c_stride;
        product.rows = rows;
        product.vectors = vectors;
        product.old = old;
        product.factor = factor;
        product.run(span, fused);
    }
};

}  // namespace heed::cpu
