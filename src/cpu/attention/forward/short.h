#pragma once
#include "cpu/attention/forward/finish.h"
#include "cpu/attention/pack.h"

/// Short sequences of float32 with nothing but a scale: each head is one tile of rows and one block of keys. All rows
/// see all keys, so nothing need be written down of each, which would take a seventh of the time at T = 20: heads are
/// computed one after the other from their addresses alone. The same bits as Forward's.

namespace heed::cpu {

/// For matrix_add: all rows need all of k.
struct AllKeys {
    struct Range {
        std::int64_t begin, end;
    };
    std::int64_t count;
    HEED_INLINE Range operator()(std::int64_t, int) const { return {0, count}; }
};

template <class Isa>
class ShortHeads {
public:
    /// Scratch of one worker.
    struct Scratch {
        float* q;        ///< [head_size][stride]
        float* scores;   ///< [keys][stride]
        float* largest;  ///< [stride] of the products
        float* sum;      ///< [stride] of the weights
        float* factor;   ///< [stride] of the product with V
    };

    static HEED_INLINE bool takes(const Call& call, const Split& split, const Sequence& s) {
        const AttentionProblem& p = *call.problem;
        const bool plain = !(call.cap > 0) && !call.alibi && call.factor > 0 && call.bias.data == nullptr &&
                           call.allow.data == nullptr && call.keep.data == nullptr && !call.drop && !call.pattern &&
                           !call.sinks && p.reach.left < 0 && p.reach.right < 0;
        const bool one_tile_a_head = split.heads_per_tile == 1 && split.tiles == call.group;
        return !call.tiles_only && plain && one_tile_a_head && s.queries > decode_rows && s.keys > 0 &&
               s.keys <= call.tile_keys && !p.packed && call.pages == nullptr && floats_in_rows(call.q) &&
               floats_in_rows(call.k) && floats_in_rows(call.v) && floats_in_rows(call.out) &&
               call.value_size % Isa::lanes == 0 && avoids_aliasing(call.head_size * 4, call.k.row * 4) &&
               avoids_aliasing(call.value_size * 4, call.v.row * 4);
    }

    ShortHeads(const Call& call, const Sequence& s)
        : call_(call),
          rows_(s.queries),
          keys_(s.keys),
          lanes_(lanes_for(static_cast<int>(s.queries), Isa::lanes)),
          vectors_((static_cast<int>(s.queries) + lanes_ - 1) / lanes_) {}

    Scratch scratch(detail::Scratch& memory) const {
        const auto stride = static_cast<std::size_t>(lanes_ * vectors_);
        const auto depth = static_cast<std::size_t>(call_.head_size);
        const auto keys = static_cast<std::size_t>(keys_);
        // Whole lines each, as the arena hands them out.
        const std::size_t floats = (depth + keys + 3) * stride + 5 * 16;
        Arena arena{static_cast<char*>(memory.at_least(floats * sizeof(float)))};
        Scratch s;
        s.q = arena.take<float>(depth * stride);
        s.scores = arena.take<float>(keys * stride);
        s.largest = arena.take<float>(stride);
        s.sum = arena.take<float>(stride);
        s.factor = arena.take<float>(stride);
        return s;
    }

    /// Heads [first, first + count), counted over all entries. Where they are far from the caches, each prefetches the
    /// next one's rows; after the last of these comes head number `then`, most likely.
    void heads(std::int64_t first, std::int64_t count, bool far, std::int64_t then, const Scratch& scratch) const {
        with_lanes_of_rows([&]<int L>() {
            std::int64_t b = first / call_.heads;
            std::int64_t h = first % call_.heads;
            for (std::int64_t n = 1; n <= count; ++n) {
                if (far) {
                    const std::int64_t next = n < count ? first + n : then;
                    LinePrefetch<3> ahead;
                    if (next < call_.batch * call_.heads) { prefetch(next / call_.heads, next % call_.heads, ahead); }
                    head<L>(b, h, scratch, ahead);
                    ahead.rest();
                } else {
                    NothingFused nothing;
                    head<L>(b, h, scratch, nothing);
                }
                if (++h == call_.heads) {
                    h = 0;
                    ++b;
                }
            }
        });
    }

private:
    /// More than decode_rows rows are never in vectors of fewer than 8 lanes, where those are not all that there are.
    template <class Function>
    HEED_INLINE void with_lanes_of_rows(Function&& function) const {
        if constexpr (Isa::lanes > 8) {
            if (lanes_ == 8) { return function.template operator()<8>(); }
        }
        function.template operator()<Isa::lanes>();
    }

    static HEED_INLINE bool floats_in_rows(const Tensor4& tensor) {
        return tensor.dtype == DType::f32 && tensor.column == 1;
    }
    static HEED_INLINE float* rows_of(const Tensor4& tensor, std::int64_t b, std::int64_t h) {
        return reinterpret_cast<float*>(tensor.data) + b * tensor.b + h * tensor.h;
    }

    HEED_INLINE void prefetch(std::int64_t b, std::int64_t h, LinePrefetch<3>& ahead) const {
        const auto add = [&](const Tensor4& from, std::int64_t head, std::int64_t rows, std::int64_t size) {
            const char* at = reinterpret_cast<const char*>(rows_of(from, b, head));
            ahead.add_run(at, from.row * 4, size * 4, rows);
        };
        add(call_.q, h, rows_, call_.head_size);
        add(call_.k, h / call_.group, keys_, call_.head_size);
        add(call_.v, h / call_.group, keys_, call_.value_size);
    }

    template <int L, class Fused>
    HEED_INLINE void head(std::int64_t b, std::int64_t h, const Scratch& scratch, Fused& fused) const {
        using S = Simd<Isa, L>;
        const std::int64_t stride = vectors_ * L;
        const float* q = rows_of(call_.q, b, h);
        transpose_rows<Isa, L>([&](std::int64_t r) { return q + r * call_.q.row; }, rows_, call_.head_size, scratch.q,
                               stride);
        for (int n = 0; n < vectors_; ++n) { S::store(scratch.largest + n * L, S::all(negative_infinity)); }
        const std::int64_t g = h / call_.group;
        matrix_set<Isa, FloatProduct, L, Walk::along_row>(rows_of(call_.k, b, g), call_.k.row, scratch.q, stride,
                                                          call_.head_size, scratch.scores, stride, keys_, vectors_,
                                                          scratch.largest, fused);
        constexpr int step = 4;
        for (int first = 0; first < vectors_; first += step) {
            with_constant<step>(smaller(vectors_ - first, step),
                                [&]<int N>() HEED_INLINE_LAMBDA { weigh<L, N>(first * L, stride, scratch); });
        }
        matrix_add<Isa, FloatProduct, Isa::lanes, Walk::along_column>(
            scratch.scores, stride, rows_of(call_.v, b, g), call_.v.row, rows_of(call_.out, b, h), call_.out.row, rows_,
            static_cast<int>(call_.value_size / Isa::lanes), Old::none_then_scale, scratch.factor, AllKeys{keys_},
            fused);
        if (call_.has_lse) {
            for (std::int64_t r = 0; r < rows_; ++r) {
                put_lse(call_, b, h, r, Finish<Isa>::lse_of(scratch.largest[r], scratch.sum[r]));
            }
        }
    }

    /// Softmax of N vectors of rows, from lane `at`, side by side: as each has but few keys, one after the other would
    /// wait for its own sums. largest becomes that of the scores.
    template <int L, int N>
    HEED_INLINE void weigh(std::int64_t at, std::int64_t stride, const Scratch& scratch) const {
        using S = Simd<Isa, L>;
        const F<L> hidden = S::all(negative_infinity);
        const F<L> scale = S::all(call_.factor);
        F<L> most[N], base[N], sum[N] = {};
        HEED_UNROLL
        for (int n = 0; n < N; ++n) {
            most[n] = S::rounded(S::load(scratch.largest + at + n * L) * scale);
            base[n] = most[n] == hidden ? F<L>{} : most[n];
            S::store(scratch.largest + at + n * L, most[n]);
        }
        const auto keys = [&]<int Keys>(float* place) HEED_INLINE_LAMBDA {
            F<L> x[Keys * N];
            HEED_UNROLL
            for (int i = 0; i < Keys * N; ++i) {
                x[i] = S::rounded(S::load(place + i / N * stride + i % N * L) * scale) - base[i % N];
            }
            S::template exp2_each<false>(x);
            HEED_UNROLL
            for (int i = 0; i < Keys * N; ++i) {
                sum[i % N] += x[i];
                S::store(place + i / N * stride + i % N * L, x[i]);
            }
        };
        float* scores = scratch.scores + at;
        std::int64_t j = 0;
        for (; j + 2 <= keys_; j += 2) { keys.template operator()<2>(scores + j * stride); }
        if (j < keys_) { keys.template operator()<1>(scores + j * stride); }
        HEED_UNROLL
        for (int n = 0; n < N; ++n) {
            const F<L> factor = S::all(call_.drop_factor) / sum[n];
            // All scores -infinity: nothing to divide.
            const auto nothing = (most[n] == hidden) & (sum[n] == F<L>{});
            S::store(scratch.sum + at + n * L, sum[n]);
            S::store(scratch.factor + at + n * L, nothing ? F<L>{} : factor);
        }
    }

    const Call& call_;
    std::int64_t rows_;
    std::int64_t keys_;
    int lanes_;
    int vectors_;
};

}  // namespace heed::cpu
