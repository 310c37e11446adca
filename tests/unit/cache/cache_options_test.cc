/// Every option of attention over caches: the same numbers as over tensors.
#include "unit/cache/cache_testing.h"

namespace heed::testing {
namespace {

struct Named {
    std::string name;
    AttentionOptions options;
};

/// Options whose tensors suit a call of `queries` on `keys`.
struct Choices {
    Tensor bias, allow, slopes, batch_slopes, sinks, keep;
    std::vector<Named> all;

    Choices(std::int64_t queries, std::int64_t keys)
        : bias(random(DType::f32, {1, heads, queries, keys}, 11)),
          allow(DType::u8, {1, 1, queries, keys}),
          slopes(random(DType::f32, {heads}, 12)),
          batch_slopes(random(DType::f32, {1, heads}, 13)),
          sinks(random(DType::f32, {heads}, 14)),
          keep(DType::u8, {1, heads, queries, keys}) {
        for (std::int64_t n = 0; n < allow.elements(); ++n) { allow.as<std::uint8_t>()[n] = n % 3 != 0; }
        for (std::int64_t n = 0; n < keep.elements(); ++n) { keep.as<std::uint8_t>()[n] = n % 5 != 0; }
        const auto add = [&](std::string name, AttentionOptions options) { all.push_back({std::move(name), options}); };
        add("causal", {.causal = true});
        add("everything", {});
        add("window", {.causal = true, .window = {.left = 5, .right = -1}});
        add("window both ways", {.window = {.left = 7, .right = 2}});
        add("allow", {.causal = true, .allow = allow});
        add("pattern", {.pattern = patterns::parse("causal & (prefix(3) | window(4, 0))")});
        add("bias", {.causal = true, .bias = bias});
        add("alibi", {.causal = true, .alibi_slopes = slopes});
        add("alibi of an entry", {.causal = true, .alibi_slopes = batch_slopes});
        add("softcap", {.scale = 0.7, .causal = true, .softcap = 2});
        add("sinks", {.causal = true, .sinks = sinks});
        add("dropout", {.causal = true, .dropout = {.p = 0.3, .seed = 5, .offset = 2}});
        add("dropout mask", {.causal = true, .dropout = {.p = 0.3, .keep = keep}});
        add("all of it", {.scale = 0.3,
                          .causal = true,
                          .window = {.left = 12, .right = -1},
                          .bias = bias,
                          .alibi_slopes = slopes,
                          .softcap = 3,
                          .sinks = sinks});
        add("reference", {.causal = true, .bias = bias, .sinks = sinks, .kernel = "reference"});
    }
};

TEST(CacheOptions, AllOfThemAreThoseOfAttention) {
    Context context(2);
    const Tokens tokens(24);
    for (const auto& [begin, end] : {std::pair<std::int64_t, std::int64_t>{0, 17}, {17, 24}, {23, 24}}) {
        const Choices choices(end - begin, end);
        for (const auto& [name, options] : choices.all) {
            const CachePool pool = poisoned(small_config());
            Cache cache = pool.create();
            if (begin > 0) { step(context, cache, tokens, 0, begin); }
            expect_near(step(context, cache, tokens, begin, end, options), plain(context, tokens, begin, end, options),
                        5e-6, name + " from " + std::to_string(begin));
        }
    }
}

/// Keys left after drops, as tensors, with their positions.
struct Left {
    Tensor k, v;
    std::vector<std::int64_t> positions;
};
Left left_of(const Tokens& tokens, const std::vector<std::int64_t>& kept) {
    std::vector<View> k, v;
    for (const std::int64_t t : kept) {
        k.push_back(part(tokens.k, t, t + 1));
        v.push_back(part(tokens.v, t, t + 1));
    }
    return {joined(k), joined(v), kept};
}

TEST(CacheOptions, AlsoWhereTokensWereDropped) {
    Context context(2);
    const Tokens tokens(24);
    // Gaps at the start, inside a page, over whole pages.
    const std::vector<std::pair<std::int64_t, std::int64_t>> drops[] = {
        {{0, 1}}, {{5, 7}}, {{4, 12}}, {{2, 13}, {0, 1}}};
    for (const auto& list : drops) {
        std::vector<std::int64_t> kept;
        for (std::int64_t t = 0; t < 20; ++t) { kept.push_back(t); }
        for (const auto& [begin, end] : list) { kept.erase(kept.begin() + begin, kept.begin() + end); }
        for (std::int64_t t = 20; t < 24; ++t) { kept.push_back(t); }
        const Left left = left_of(tokens, kept);
        const auto keys = static_cast<std::int64_t>(kept.size());
        const std::vector<std::int64_t> new_positions{20, 21, 22, 23};
        const Choices choices(4, keys);
        for (const auto& [name, given] : choices.all) {
            const CachePool pool = poisoned(small_config());
            Cache cache = pool.create();
            step(context, cache, tokens, 0, 20);
            for (const auto& [begin, end] : list) { cache.drop(begin, end); }
            const Answer got = step(context, cache, tokens, 20, 24, given);
            EXPECT_EQ(cache.positions(), kept);
            Answer expected(4);
            AttentionOptions options = given;
            options.query_positions = View(DType::i64, new_positions.data(), Shape{1, 4});
            options.key_positions = View(DType::i64, left.positions.data(), Shape{1, keys});
            attend(context, part(tokens.q, 20, 24), left.k, left.v, {.out = expected.out, .lse = expected.lse},
                   options);
            expect_near(got, expected, 5e-6, name + " after dropping from " + std::to_string(list.front().first));
        }
    }
}

TEST(CacheOptions, PositionsMayBeSaid) {
    Context context(1);
    const Tokens tokens(10);
    const std::vector<std::int64_t> positions{0, 0, 0, 1, 2, 3, 10, 11, -4, 40};  // padding, gaps, a step back
    const Tensor slopes = random(DType::f32, {heads}, 3);
    const CachePool pool = poisoned(small_config());
    Cache cache = pool.create();
    const AttentionOptions options{.causal = true, .alibi_slopes = slopes};
    for (const auto& [begin, end] : {std::pair<std::int64_t, std::int64_t>{0, 7}, {7, 8}, {8, 10}}) {
        AttentionOptions with = options;
        with.query_positions = View(DType::i64, positions.data() + begin, Shape{1, end - begin});
        const Answer got = step(context, cache, tokens, begin, end, with);
        Answer expected(end - begin);
        with.key_positions = View(DType::i64, positions.data(), Shape{1, end});
        attend(context, part(tokens.q, begin, end), part(tokens.k, 0, end), part(tokens.v, 0, end),
               {.out = expected.out, .lse = expected.lse}, with);
        expect_near(got, expected, 2e-6);
    }
    EXPECT_EQ(cache.positions(), positions);
    EXPECT_EQ(cache.next_position(), 41);
    cache.truncate(8);
    EXPECT_EQ(cache.next_position(), 12);
}

TEST(CacheOptions, EntriesOfABatchHaveTheirOwnRows) {
    Context context(2);
    const CachePool pool = poisoned(small_config());
    // One plain, one with a gap, one plain: three ways through the kernels, one bias.
    const Tokens tokens[3] = {Tokens(12, 1), Tokens(12, 2), Tokens(12, 3)};
    Cache caches[3] = {pool.create(), pool.create(), pool.create()};
    for (int n = 0; n < 3; ++n) { step(context, caches[n], tokens[n], 0, 10); }
    caches[1].drop(2, 5);
    const Tensor bias = random(DType::f32, {3, heads, 2, 12}, 8), slopes = random(DType::f32, {3, heads}, 9);
    for (const bool dropout : {false, true}) {
        AttentionOptions options{.causal = true, .bias = bias, .alibi_slopes = slopes};
        if (dropout) { options.dropout = {.p = 0.2, .seed = 4, .offset = 1}; }
        Cache forks[3] = {caches[0].fork(), caches[1].fork(), caches[2].fork()};
        Answer got(6);
        const Tensor q = joined({part(tokens[0].q, 10, 12), part(tokens[1].q, 10, 12), part(tokens[2].q, 10, 12)});
        const Tensor k = joined({part(tokens[0].k, 10, 12), part(tokens[1].k, 10, 12), part(tokens[2].k, 10, 12)});
        const Tensor v = joined({part(tokens[0].v, 10, 12), part(tokens[1].v, 10, 12), part(tokens[2].v, 10, 12)});
        cached_attend(context, {.caches = {&forks[0], &forks[1], &forks[2]}}, q, k, v, {.out = got.out, .lse = got.lse},
                      options);
        // The definition: all of it packed, with positions.
        const Left left = left_of(tokens[1], {0, 1, 5, 6, 7, 8, 9, 10, 11});
        const Tensor all_k = joined({tokens[0].k, left.k, tokens[2].k}),
                     all_v = joined({tokens[0].v, left.v, tokens[2].v});
        std::vector<std::int64_t> key_positions;
        for (std::int64_t t = 0; t < 12; ++t) { key_positions.push_back(t); }
        key_positions.insert(key_positions.end(), left.positions.begin(), left.positions.end());
        for (std::int64_t t = 0; t < 12; ++t) { key_positions.push_back(t); }
        const std::vector<std::int64_t> query_positions{10, 11, 10, 11, 10, 11}, cu_q{0, 2, 4, 6}, cu_k{0, 12, 21, 33};
        options.cu_seqlens_q = View(DType::i64, cu_q.data(), Shape{4});
        options.cu_seqlens_k = View(DType::i64, cu_k.data(), Shape{4});
        options.query_positions = View(DType::i64, query_positions.data(), Shape{1, 6});
        options.key_positions = View(DType::i64, key_positions.data(), Shape{1, 33});
        Answer expected(6);
        attend(context, q, all_k, all_v, {.out = expected.out, .lse = expected.lse}, options);
        expect_near(got, expected, 5e-6, dropout ? "dropout" : "bias");
    }
}

}  // namespace
}  // namespace heed::testing
