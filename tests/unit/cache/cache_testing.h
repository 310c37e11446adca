#pragma once
/// What the tests of caches share: sequences as plain tensors, and attention over them as the definition has it.
#include <heed/cache.h>

#include "unit/cache/cache_poison.h"
#include "unit/ops/op_testing.h"

namespace heed::testing {

constexpr std::int64_t heads = 4, groups = 2, key_size = 6, value_size = 5;

inline CacheConfig small_config(std::int64_t page_size = 4, std::int64_t pages = 64) {
    return {.layers = 1,
            .kv_heads = groups,
            .head_size = key_size,
            .value_size = value_size,
            .page_size = page_size,
            .pages = pages};
}

/// q, k and v of some tokens, [1,*,T,*]; token t of seed s is the same whatever T is.
struct Tokens {
    Tensor q, k, v;

    explicit Tokens(std::int64_t count, unsigned seed = 1, DType dtype = DType::f32, std::int64_t first = 0)
        : q(dtype, {1, heads, count, key_size}),
          k(dtype, {1, groups, count, key_size}),
          v(dtype, {1, groups, count, value_size}) {
        for (std::int64_t t = 0; t < count; ++t) {
            const auto of_token = static_cast<unsigned>(first + t) * 977U + seed * 7919U;
            fill(q.view().slice(2, t, t + 1), 3 * of_token + 1);
            fill(k.view().slice(2, t, t + 1), 3 * of_token + 2);
            fill(v.view().slice(2, t, t + 1), 3 * of_token + 3);
        }
    }
    std::int64_t count() const { return q.shape()[2]; }
};

struct Answer {
    Tensor out, lse;
    explicit Answer(std::int64_t count, DType dtype = DType::f32, std::int64_t columns = value_size,
                    std::int64_t query_heads = heads)
        : out(dtype, {1, query_heads, count, columns}), lse(DType::f32, {1, query_heads, count}) {}
};

inline View part(const Tensor& x, std::int64_t begin, std::int64_t end) { return x.view().slice(2, begin, end); }

/// Rows of several tensors end to end.
inline Tensor joined(const std::vector<View>& parts) {
    Shape shape = parts.front().shape();
    shape[2] = 0;
    for (const View& x : parts) { shape[2] += x.extent(2); }
    Tensor all(parts.front().dtype(), shape);
    std::int64_t at = 0;
    for (const View& x : parts) {
        const MutableView target = all.view().slice(2, at, at + x.extent(2));
        for (std::int64_t n = 0; n < x.shape().elements(); ++n) { set(target, n, get(x, n)); }
        at += x.extent(2);
    }
    return all;
}

/// Tokens [begin, end) of one sequence through its cache.
inline Answer step(Context& context, Cache& cache, const Tokens& tokens, std::int64_t begin, std::int64_t end,
                   const AttentionOptions& options = {.causal = true}) {
    Answer answer(end - begin, tokens.q.dtype());
    cached_attend(context, {.caches = {&cache}}, part(tokens.q, begin, end), part(tokens.k, begin, end),
                  part(tokens.v, begin, end), {.out = answer.out, .lse = answer.lse}, options);
    return answer;
}

/// The same from tensors alone: queries [begin, end) over all keys before `end`.
inline Answer plain(Context& context, const Tokens& tokens, std::int64_t begin, std::int64_t end,
                    const AttentionOptions& options = {.causal = true}) {
    Answer answer(end - begin, tokens.q.dtype());
    attend(context, part(tokens.q, begin, end), part(tokens.k, 0, end), part(tokens.v, 0, end),
           {.out = answer.out, .lse = answer.lse}, options);
    return answer;
}

inline void expect_near(const Answer& got, const Answer& expected, double tolerance, const std::string& what = "") {
    expect_near(got.out, expected.out, tolerance, what + " out");
    expect_near(got.lse, expected.lse, tolerance, what + " lse");
}
inline void expect_same(const Answer& got, const Answer& expected, const std::string& what = "") {
    expect_same(got.out, expected.out, what + " out");
    expect_same(got.lse, expected.lse, what + " lse");
}

}  // namespace heed::testing
