#pragma once
/// Steps 2 to 6 of <heed/attention.h> for one pair of a query and a key, with every option, on the device.

#include "cuda/attention_call.h"
#include "cuda/numbers.cuh"
#include "kernel/pattern_program.h"

#include <heed/random.h>

namespace heed::cuda {

constexpr double minus_infinity = -__builtin_huge_val();

/// Not inlined: rare and long.
__device__ __noinline__ inline bool pattern_allows(const std::int64_t* program, std::int64_t words,
                                                   PatternPoint point) {
    return run_pattern_program(program, words, point);
}

__device__ inline Entry entry_of(const AttentionCall& c, std::int64_t b) {
    Entry s;
    s.number = b;
    const auto integer = [](const Tensor4& list, std::int64_t n) {
        return load_integer(list.dtype, list.data, n * list.stride[0]);
    };
    // Numbers in the device's memory are not checked by anybody: what does not fit is cut, so that nothing is read or
    // written outside the tensors.
    const auto cut = [](std::int64_t n, std::int64_t most) { return n < 0 ? 0 : n > most ? most : n; };
    if (c.packed) {
        s.query_begin = cut(integer(c.cu_queries, b), c.queries);
        s.rows = s.queries = cut(integer(c.cu_queries, b + 1) - s.query_begin, c.queries - s.query_begin);
        s.key_begin = cut(integer(c.cu_keys, b), c.keys);
        s.key_rows = s.keys = cut(integer(c.cu_keys, b + 1) - s.key_begin, c.keys - s.key_begin);
    } else {
        s.batch = b;
        s.rows = s.queries = c.queries;
        s.key_rows = s.keys = c.keys;
    }
    s.shift = c.bottom_right ? s.keys - s.queries : 0;
    if (c.query_lengths.data != nullptr) { s.queries = cut(integer(c.query_lengths, b), s.queries); }
    if (c.key_lengths.data != nullptr) { s.keys = cut(integer(c.key_lengths, b), s.keys); }
    return s;
}

__device__ inline std::int64_t query_position(const AttentionCall& c, const Entry& s, std::int64_t i) {
    const Tensor4& p = c.query_positions;
    if (p.data == nullptr) { return i + s.shift; }
    return load_integer(p.dtype, p.data, s.batch * p.stride[0] + (s.query_begin + i) * p.stride[1]);
}
__device__ inline std::int64_t key_position(const AttentionCall& c, const Entry& s, std::int64_t j) {
    const Tensor4& p = c.key_positions;
    if (p.data == nullptr) { return j; }
    return load_integer(p.dtype, p.data, s.batch * p.stride[0] + (s.key_begin + j) * p.stride[1]);
}

__device__ inline std::int64_t pair_offset(const Tensor4& x, std::int64_t b, std::int64_t h, std::int64_t i,
                                           std::int64_t j) {
    return b * x.stride[0] + h * x.stride[1] + i * x.stride[2] + j * x.stride[3];
}

struct Pair {
    std::int64_t h, i, j;  ///< head, query and key of the entry
    std::int64_t p, at;    ///< their positions
};

/// What options make of a scaled dot product.
template <class A>
struct Score {
    bool visible = false;
    A x = 0;
    A slope_of_cap = 1;  ///< derivative of the soft-cap
    A distance = 0;
};

/// With calls, the pattern's program is there once in a kernel; kernels with products of warpgroups must have none.
template <class A, bool calls = true>
__device__ inline Score<A> score_of(const AttentionCall& c, const Entry& s, const Pair& pair, A dot) {
    Score<A> score;
    if (c.right >= 0 && pair.at > pair.p + c.right) { return score; }
    if (c.left >= 0 && pair.at < pair.p - c.left) { return score; }
    if (c.allow.data != nullptr) {
        const auto* allow = static_cast<const std::uint8_t*>(c.allow.data);
        if (allow[pair_offset(c.allow, s.number, pair.h, pair.i, pair.j)] == 0) { return score; }
    }
    if (c.pattern_words > 0) {
        const PatternPoint point{s.number, pair.h, pair.p, pair.at};
        bool allowed = false;
        if constexpr (calls) {
            allowed = pattern_allows(c.pattern, c.pattern_words, point);
        } else {
            allowed = run_pattern_program(c.pattern, c.pattern_words, point);
        }
        if (!allowed) { return score; }
    }
    A bias = 0;
    if (c.bias.data != nullptr) {
        bias = load_as<A>(c.bias.dtype, c.bias.data, pair_offset(c.bias, s.number, pair.h, pair.i, pair.j));
        if (bias == static_cast<A>(minus_infinity)) { return score; }
    }
    score.visible = true;
    score.x = static_cast<A>(c.scale) * dot;
    if (c.softcap > 0) {
        const A bent = tanh(score.x / static_cast<A>(c.softcap));
        score.slope_of_cap = 1 - bent * bent;
        score.x = static_cast<A>(c.softcap) * bent;
    }
    score.x += bias;
    if (c.slopes.data != nullptr) {
        const A slope =
            load_as<A>(c.slopes.dtype, c.slopes.data, s.number * c.slopes.stride[0] + pair.h * c.slopes.stride[1]);
        const std::int64_t apart = pair.p - pair.at;
        score.distance = static_cast<A>(apart < 0 ? -apart : apart);
        score.x -= slope * score.distance;
    }
    return score;
}

/// Step 6: the factor on the weight.
template <class A>
__device__ inline A kept(const AttentionCall& c, const Entry& s, const Pair& pair) {
    bool keeps = false;
    if (c.keep.data != nullptr) {
        keeps =
            static_cast<const std::uint8_t*>(c.keep.data)[pair_offset(c.keep, s.number, pair.h, pair.i, pair.j)] != 0;
    } else {
        keeps =
            dropout_word(c.drop_seed, c.drop_offset, static_cast<std::uint32_t>(s.number * c.heads + pair.h),
                         static_cast<std::uint32_t>(pair.i), static_cast<std::uint32_t>(pair.j)) >= c.drop_threshold;
    }
    return keeps ? static_cast<A>(1 / (1 - c.drop_probability)) : A{0};
}

}  // namespace heed::cuda
