#pragma once
/// RoPE for one instruction set. The tokens of a block share one table of cosines and sines over all heads, and a row
/// of it stays in registers while heads go by; what is left is one read and one write of x, at the speed of memory.

#include "cpu/isa/tables.h"
#include "cpu/rope/numbers_isa.h"
#include "cpu/rope/table_isa.h"

namespace heed::cpu {

template <class Isa>
struct RopeKernel {
    static constexpr int L = Isa::lanes;
    /// Vectors of cosines that are kept, with as many of sines, and twice as many numbers of x.
    static constexpr int widest = Isa::registers >= 32 ? 4 : 2;
    using S = Simd<Isa, L>;
    using Float = RopeFloat<Isa>;
    using Bf16 = RopeBf16<Isa>;
    using F16 = RopeF16<Isa>;

    /// One token's rows of several heads; strides in elements.
    template <class From, class To>
    struct Rows {
        const typename From::Word* from;
        typename To::Word* to;
        std::int64_t from_stride;
        std::int64_t to_stride;
        std::int64_t count;
        std::int64_t ahead;  ///< from a row to the one that will be wanted a while later
    };

    /// Asks for numbers that come later, to wait in the second-level cache: the first level is too small for as many.
    /// A line of 16-bit numbers takes so long to compute that the core alone does not look far enough ahead; f32 needs
    /// no help, and is slower with it.
    template <class From, int Numbers>
    static HEED_INLINE void prefetch(const typename From::Word* from) {
        if constexpr (sizeof(*from) == 2) {
            constexpr int line = 64 / sizeof(*from);
            HEED_UNROLL
            for (int n = 0; n < Numbers; n += line) { __builtin_prefetch(from + n, 0, 2); }
        }
    }

    /// Which of 2L numbers comes to a lane.
    enum class Order { evens, odds, lower_twice, upper_twice, neighbours };
    template <Order To>
    static constexpr int source(int lane) {
        switch (To) {
            case Order::evens: return 2 * lane;
            case Order::odds: return 2 * lane + 1;
            case Order::lower_twice: return lane / 2;
            case Order::upper_twice: return (L + lane) / 2;
            default: return lane % 2 == 0 ? lane + 1 : lane - 1;
        }
    }
    template <Order To, std::size_t... Lane>
    static HEED_INLINE F<L> shuffled(F<L> x, F<L> y, std::index_sequence<Lane...>) {
#if defined(__clang__)
        return __builtin_shufflevector(x, y, source<To>(static_cast<int>(Lane))...);
#else
        return __builtin_shuffle(x, y, I<L>{source<To>(static_cast<int>(Lane))...});
#endif
    }
    template <Order To>
    static HEED_INLINE F<L> shuffled(F<L> x, F<L> y) {
        return shuffled<To>(x, y, std::make_index_sequence<L>{});
    }
    template <int K>
    static HEED_INLINE void part(F<L> (&x)[K]) {
        HEED_UNROLL
        for (int n = 0; n < K; n += 2) {
            const F<L> evens = shuffled<Order::evens>(x[n], x[n + 1]);
            x[n + 1] = shuffled<Order::odds>(x[n], x[n + 1]);
            x[n] = evens;
        }
    }

    /// Two vectors of bf16 come and go at once, as one vector of memory.
    template <class From, class To>
    static constexpr bool in_twos = (std::is_same_v<From, Bf16> && std::is_same_v<To, Bf16>);

    /// K vectors of numbers in a row.
    template <class From, int K, bool twos>
    static HEED_INLINE void get(const typename From::Word* from, F<L> (&x)[K]) {
        HEED_UNROLL
        for (int n = 0; n < K; n += twos ? 2 : 1) {
            if constexpr (twos) {
                From::get_two(from + n * L, x[n], x[n + 1]);
            } else {
                x[n] = From::get(from + n * L);
                read_here(x[n]);
            }
        }
    }
    template <class To, int K, bool twos>
    static HEED_INLINE void put(typename To::Word* to, const F<L> (&x)[K]) {
        HEED_UNROLL
        for (int n = 0; n < K; n += twos ? 2 : 1) {
            if constexpr (twos) {
                To::put_two(to + n * L, x[n], x[n + 1]);
            } else {
                To::put(to + n * L, x[n]);
            }
        }
    }

    /// Pairs [i, i + K * L) of all rows, number i with number pairs + i. Each row is read whole, in order of address,
    /// before it is written, which may be to the same place: on Zen 4 reading from both halves in turn costs a quarter
    /// of the speed of memory.
    template <class From, class To, int K>
    static HEED_INLINE void rotate_halves(const Rows<From, To>& rows, std::int64_t pairs, std::int64_t i,
                                          const float* cosines, const float* sines) {
        constexpr bool twos = in_twos<From, To> && K % 2 == 0;
        F<L> c[K];
        F<L> s[K];
        get<Float, K, false>(cosines + i, c);
        get<Float, K, false>(sines + i, s);
        if constexpr (twos && !Bf16::halves_are_quicker) {
            part<K>(c);
            part<K>(s);
        }
        const typename From::Word* from = rows.from + i;
        typename To::Word* to = rows.to + i;
        const Rows<From, To> all = rows;  // what is written could be `rows`, for all the compiler knows
        for (std::int64_t row = 0; row < all.count; ++row, from += all.from_stride, to += all.to_stride) {
            if (all.ahead != 0) {
                prefetch<From, K * L>(from + all.ahead);
                prefetch<From, K * L>(from + all.ahead + pairs);
            }
            F<L> a[K];
            F<L> b[K];
            get<From, K, twos>(from, a);
            get<From, K, twos>(from + pairs, b);
            F<L> rotated[K];
            HEED_UNROLL
            for (int n = 0; n < K; ++n) { rotated[n] = a[n] * c[n] - b[n] * s[n]; }
            put<To, K, twos>(to, rotated);
            HEED_UNROLL
            for (int n = 0; n < K; ++n) { rotated[n] = a[n] * s[n] + b[n] * c[n]; }
            put<To, K, twos>(to + pairs, rotated);
        }
    }

    /// Pairs [i, i + K * L) of all rows, number 2i with number 2i + 1.
    template <class From, class To, int K>
    static HEED_INLINE void rotate_neighbours(const Rows<From, To>& rows, std::int64_t i, const float* cosines,
                                              const float* sines) {
        if constexpr (in_twos<From, To>) {
            rotate_split<From, To, K>(rows, i, cosines, sines);
        } else {
            rotate_crosswise<From, To, K>(rows, i, cosines, sines);
        }
    }

    /// The same, where both numbers of a pair come to the same lane of two registers.
    template <class From, class To, int K>
    static HEED_INLINE void rotate_split(const Rows<From, To>& rows, std::int64_t i, const float* cosines,
                                         const float* sines) {
        F<L> c[K];
        F<L> s[K];
        get<Float, K, false>(cosines + i, c);
        get<Float, K, false>(sines + i, s);
        const typename From::Word* from = rows.from + 2 * i;
        typename To::Word* to = rows.to + 2 * i;
        const Rows<From, To> all = rows;
        for (std::int64_t row = 0; row < all.count; ++row, from += all.from_stride, to += all.to_stride) {
            if (all.ahead != 0) { prefetch<From, 2 * K * L>(from + all.ahead); }
            F<L> a[K];
            F<L> b[K];
            HEED_UNROLL
            for (int n = 0; n < K; ++n) { From::get_pairs(from + 2 * n * L, a[n], b[n]); }
            HEED_UNROLL
            for (int n = 0; n < K; ++n) {
                To::put_pairs(to + 2 * n * L, a[n] * c[n] - b[n] * s[n], a[n] * s[n] + b[n] * c[n]);
            }
        }
    }

    /// The same, where they are neighbours: (a, b) * c + (b, a) * (-s, s) takes one shuffle within 16 bytes, half as
    /// many as splitting and interleaving them.
    template <class From, class To, int K>
    static HEED_INLINE void rotate_crosswise(const Rows<From, To>& rows, std::int64_t i, const float* cosines,
                                             const float* sines) {
        F<L> c[2 * K];
        F<L> s[2 * K];
        HEED_UNROLL
        for (int n = 0; n < K; ++n) {
            const F<L> cosine = S::load(cosines + i + n * L);
            const F<L> sine = S::load(sines + i + n * L);
            c[2 * n] = shuffled<Order::lower_twice>(cosine, cosine);
            c[2 * n + 1] = shuffled<Order::upper_twice>(cosine, cosine);
            s[2 * n] = first_of_two_negated(shuffled<Order::lower_twice>(sine, sine));
            s[2 * n + 1] = first_of_two_negated(shuffled<Order::upper_twice>(sine, sine));
        }
        const typename From::Word* from = rows.from + 2 * i;
        typename To::Word* to = rows.to + 2 * i;
        const Rows<From, To> all = rows;
        for (std::int64_t row = 0; row < all.count; ++row, from += all.from_stride, to += all.to_stride) {
            if (all.ahead != 0) { prefetch<From, 2 * K * L>(from + all.ahead); }
            F<L> x[2 * K];
            get<From, 2 * K, false>(from, x);
            HEED_UNROLL
            for (int n = 0; n < 2 * K; ++n) {
                To::put(to + n * L, x[n] * c[n] + shuffled<Order::neighbours>(x[n], x[n]) * s[n]);
            }
        }
    }
    static HEED_INLINE F<L> first_of_two_negated(F<L> x) {
        typedef std::uint64_t Pairs __attribute__((vector_size(4 * L)));
        return F<L>(Pairs(x) ^ 0x80000000U);
    }

    /// What is left of each row when no whole vector is: its last pairs, and what passes through.
    template <class From, class To>
    static HEED_INLINE void finish(const RopeCall& call, const Rows<From, To>& rows, std::int64_t first,
                                   const float* cosines, const float* sines) {
        const typename From::Word* from = rows.from;
        typename To::Word* to = rows.to;
        for (std::int64_t row = 0; row < rows.count; ++row, from += rows.from_stride, to += rows.to_stride) {
            for (std::int64_t i = first; i < call.pairs; ++i) {
                const std::int64_t one = call.interleaved ? 2 * i : i;
                const std::int64_t other = call.interleaved ? 2 * i + 1 : call.pairs + i;
                const float a = From::one(from[one]);
                const float b = From::one(from[other]);
                to[one] = To::back(a * cosines[i] - b * sines[i]);
                to[other] = To::back(a * sines[i] + b * cosines[i]);
            }
            for (std::int64_t c = 2 * call.pairs; c < call.size; ++c) { to[c] = To::back(From::one(from[c])); }
        }
    }

    /// Pairs from i on, K vectors at a time; returns the first that is left.
    template <class From, class To, int K>
    static HEED_INLINE std::int64_t columns(const RopeCall& call, const Rows<From, To>& rows, std::int64_t i,
                                            const float* cosines, const float* sines) {
        for (; i + K * L <= call.pairs; i += K * L) {
            if (call.interleaved) {
                rotate_neighbours<From, To, K>(rows, i, cosines, sines);
            } else {
                rotate_halves<From, To, K>(rows, call.pairs, i, cosines, sines);
            }
        }
        return i;
    }

    template <class From, class To>
    static HEED_INLINE void rotate(const RopeCall& call, const Rows<From, To>& rows, const float* cosines,
                                   const float* sines) {
        std::int64_t i = columns<From, To, widest>(call, rows, 0, cosines, sines);
        if constexpr (widest > 2) { i = columns<From, To, 2>(call, rows, i, cosines, sines); }
        i = columns<From, To, 1>(call, rows, i, cosines, sines);
        if (i < call.pairs || 2 * call.pairs < call.size) { finish(call, rows, i, cosines, sines); }
    }

    /// Contiguous rows, directly from memory to memory.
    template <class From, class To>
    struct Straight {
        static HEED_INLINE void rows(const RopeCall& call, const char* from, char* to, std::int64_t count,
                                     std::int64_t ahead, const float* cosines, const float* sines, float*) {
            rotate<From, To>(call,
                             {reinterpret_cast<const typename From::Word*>(from),
                              reinterpret_cast<typename To::Word*>(to), call.x.h, call.out.h, count, ahead},
                             cosines, sines);
        }
    };
    /// Any strides and types, by way of a row in scratch.
    struct Gathered {
        static HEED_INLINE void rows(const RopeCall& call, const char* from, char* to, std::int64_t count, std::int64_t,
                                     const float* cosines, const float* sines, float* scratch) {
            for (std::int64_t n = 0; n < count; ++n) {
                load_row<Isa>(call.x.dtype, from + n * call.x.h * bytes_of(call.x.dtype), call.x.column, call.size,
                              scratch);
                rotate<Float, Float>(call, {scratch, scratch, 0, 0, 1, 0}, cosines, sines);
                store_row<Isa>(call.out.dtype, to + n * call.out.h * bytes_of(call.out.dtype), call.out.column,
                               call.size, scratch, 1.0F);
            }
        }
    };
    static HEED_INLINE std::int64_t bytes_of(DType dtype) { return dtype == DType::f32 ? 4 : 2; }

    struct Table {
        float* cosines;
        float* sines;
    };

    /// Token by token, the rows of several heads together: a row of the table then comes once for all of them from the
    /// second-level cache, which is busy with x, and x is read in as many runs. Speed against a plain loop over the
    /// same memory on Zen 4, [B,H,T,D] f32 in place: 2 heads 57 %, 4 84 %, 8 109 %, 12 110 %, 16 56 %; bf16 68, 82, 89,
    /// 86 and 82 %; f32 to another tensor, where as many runs are written: 2 heads 103 %, 4 118 %, 8 81 %.
    template <class Way>
    static void tokens(const RopeCall& call, std::int64_t b, std::int64_t begin, std::int64_t count, Table table,
                       float* scratch) {
        const std::int64_t x_bytes = bytes_of(call.x.dtype);
        const std::int64_t out_bytes = bytes_of(call.out.dtype);
        const bool in_place = call.out.data == call.x.data;
        const std::int64_t together = call.heads_inside ? call.heads : in_place ? 8 : 4;
        // Whole pages from head to head: each row waits for the one before to be written, unless it comes at once.
        const bool ask = in_place && !call.heads_inside && call.x.h * x_bytes % RopeCall::page == 0;
        constexpr std::int64_t rows_ahead = 128;
        const std::int64_t distance = smaller(count, rows_ahead / together);
        for (std::int64_t h = 0; h < call.heads; h += together) {
            const char* from = call.x.data + (b * call.x.b + h * call.x.h + begin * call.x.t) * x_bytes;
            char* to = call.out.data + (b * call.out.b + h * call.out.h + begin * call.out.t) * out_bytes;
            const bool more_heads = h + 2 * together <= call.heads;
            for (std::int64_t r = 0; r < count; ++r) {
                std::int64_t ahead = 0;  // nothing beyond the block, where others may be at work
                if (ask && r + distance < count) {
                    ahead = distance * call.x.t;
                } else if (ask && more_heads) {
                    ahead = together * call.x.h + (distance - count) * call.x.t;
                }
                const std::int64_t at = r * call.padded_pairs;
                Way::rows(call, from + r * call.x.t * x_bytes, to + r * call.out.t * out_bytes,
                          smaller(together, call.heads - h), ahead, table.cosines + at, table.sines + at, scratch);
            }
        }
    }

    /// Cosines and sines half a page away from the rows of x, modulo pages. Where a row of x takes as many bytes as one
    /// of cosines, as with 16 bits, it stays so: reading the table then never waits for writes of x.
    static HEED_INLINE Table place_table(const RopeCall& call, std::int64_t b, std::int64_t begin, float* scratch) {
        const char* x = call.x.data + (b * call.x.b + begin * call.x.t) * bytes_of(call.x.dtype);
        const std::uintptr_t wanted = reinterpret_cast<std::uintptr_t>(x) + RopeCall::page / 2;
        const std::uintptr_t bytes = (wanted - reinterpret_cast<std::uintptr_t>(scratch)) % RopeCall::page;
        float* cosines = scratch + bytes / 64 * (64 / sizeof(float));
        return {cosines, cosines + call.block * call.padded_pairs};
    }

    static void block(const RopeCall& call, std::int64_t b, std::int64_t begin, std::int64_t count,
                      const std::int64_t* positions, float* scratch) {
        const Table table = place_table(call, b, begin, scratch);
        float* steps = table.sines + call.block * call.padded_pairs;
        float* row = steps + 4 * call.padded_pairs;
        RopeTableKernel<Isa>::fill_table(call, count, positions, reinterpret_cast<double*>(steps), table.cosines,
                                         table.sines);
        auto run = tokens<Gathered>;
        if (call.x.column == 1 && call.out.column == 1) {
            const bool wide_out = call.out.dtype == DType::f32;
            if (call.x.dtype == DType::f32) { run = tokens<Straight<Float, Float>>; }
            if (call.x.dtype == DType::bf16) {
                run = wide_out ? tokens<Straight<Bf16, Float>> : tokens<Straight<Bf16, Bf16>>;
            }
            if (call.x.dtype == DType::f16) {
                run = wide_out ? tokens<Straight<F16, Float>> : tokens<Straight<F16, F16>>;
            }
        }
        run(call, b, begin, count, table, row);
    }
};

template <class Isa>
constexpr RopeFunctions rope_functions() {
    return {.block = RopeKernel<Isa>::block};
}

}  // namespace heed::cpu
