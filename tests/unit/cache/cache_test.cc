#include "unit/cache/cache_testing.h"

namespace heed::testing {
namespace {

TEST(Cache, PrefillChunksAndDecodingAreAttentionOverAllTokens) {
    Context context(2);
    const Tokens tokens(40);
    const CachePool pool = poisoned(small_config());
    Cache cache = pool.create();
    std::int64_t at = 0;
    for (const std::int64_t count : {13, 1, 7, 1, 1, 17}) {
        const Answer got = step(context, cache, tokens, at, at + count);
        expect_near(got, plain(context, tokens, at, at + count), 2e-6, "at " + std::to_string(at));
        at += count;
        EXPECT_EQ(cache.length(), at);
        EXPECT_EQ(cache.pages(), (at + 3) / 4);
        EXPECT_EQ(pool.free_pages(), 64 - cache.pages());
    }
    expect_same(cache.keys(0, 0, 40), tokens.k);
    expect_same(cache.values(0, 5, 9), part(tokens.v, 5, 9));
}

TEST(Cache, AnyPageSizeGivesTheSameBits) {
    Context context(2);
    const Tokens tokens(300);
    std::vector<Answer> first;
    for (const std::int64_t page_size : {512, 1, 3, 16, 64, 100}) {
        const CachePool pool =
            poisoned(page_size == 512 ? contiguous_cache(small_config(), 512) : small_config(page_size, 300));
        Cache cache = pool.create();
        std::vector<Answer> answers;
        answers.push_back(step(context, cache, tokens, 0, 130));
        answers.push_back(step(context, cache, tokens, 130, 131));
        answers.push_back(step(context, cache, tokens, 131, 299));
        answers.push_back(step(context, cache, tokens, 299, 300));
        if (first.empty()) { first = std::move(answers); }
        for (std::size_t n = 0; n < answers.size(); ++n) {
            expect_same(answers[n], first[n], "page size " + std::to_string(page_size));
        }
    }
}

/// Chunks of whole tiles of 64 rows; the longer sequence has enough keys for decoding to cut them up.
TEST(Cache, ChunksOnTileBordersGiveTheSameBits) {
    Context context(2);
    const std::int64_t length = 1536;
    const Tokens tokens(length);
    const CachePool pool = poisoned(small_config(16, 400));
    Cache whole = pool.create();
    const Answer once = step(context, whole, tokens, 0, length);
    for (const std::int64_t chunk : {64, 128, 256, 768}) {
        Cache cache = pool.create();
        for (std::int64_t t = 0; t < length; t += chunk) {
            const Answer got = step(context, cache, tokens, t, t + chunk);
            expect_same(got.out, part(once.out, t, t + chunk), "chunks of " + std::to_string(chunk));
            expect_same(got.lse, part(once.lse, t, t + chunk), "chunks of " + std::to_string(chunk));
        }
    }
}

TEST(Cache, ARaggedBatchMixesPrefillsAndDecodes) {
    Context context(2);
    const CachePool pool = poisoned(small_config());
    Cache caches[4] = {pool.create(), pool.create(), pool.create(), pool.create()};
    const Tokens tokens[4] = {Tokens(20, 1), Tokens(20, 2), Tokens(20, 3), Tokens(20, 4)};
    std::int64_t at[4] = {0, 0, 0, 0};
    for (const std::vector<std::int64_t>& counts :
         {std::vector<std::int64_t>{7, 0, 1, 3}, {1, 9, 1, 1}, {5, 1, 11, 0}, {1, 1, 1, 1}}) {
        std::vector<View> q, k, v;
        std::vector<Answer> expected;
        std::int64_t sum = 0;
        for (int n = 0; n < 4; ++n) {
            const std::int64_t count = counts[static_cast<std::size_t>(n)];
            q.push_back(part(tokens[n].q, at[n], at[n] + count));
            k.push_back(part(tokens[n].k, at[n], at[n] + count));
            v.push_back(part(tokens[n].v, at[n], at[n] + count));
            expected.push_back(plain(context, tokens[n], at[n], at[n] + count));
            at[n] += count;
            sum += count;
        }
        Answer got(sum);
        cached_attend(context, {.caches = {&caches[0], &caches[1], &caches[2], &caches[3]}, .tokens = counts},
                      joined(q), joined(k), joined(v), {.out = got.out, .lse = got.lse}, {.causal = true});
        std::int64_t begin = 0;
        for (std::size_t n = 0; n < 4; ++n) {
            const std::int64_t end = begin + counts[n];
            expect_near(part(got.out, begin, end), expected[n].out, 2e-6);
            expect_near(part(got.lse, begin, end), expected[n].lse, 2e-6);
            begin = end;
        }
    }
    EXPECT_EQ(caches[2].length(), 14);
}

TEST(Cache, AForkIsASeparateCache) {
    Context context(2);
    const Tokens a(30, 1), b(30, 2);
    const CachePool pool = poisoned(small_config());
    Cache first = pool.create(), alone = pool.create(), other = pool.create();
    step(context, first, a, 0, 10);
    const std::int64_t before = pool.free_pages();
    Cache fork = first.fork();
    EXPECT_EQ(pool.free_pages(), before) << "a fork takes no page";
    EXPECT_EQ(fork.shared_pages(), 3);
    EXPECT_EQ(fork.bytes(), 3 * cache_bytes_per_page(pool.config()));
    // The same tokens in two caches that share nothing.
    step(context, alone, a, 0, 10);
    step(context, other, a, 0, 10);
    for (std::int64_t t = 10; t < 30; ++t) {
        const Answer x = step(context, first, a, t, t + 1);
        const Answer y = step(context, fork, b, t, t + 1);
        expect_same(x, step(context, alone, a, t, t + 1));
        expect_same(y, step(context, other, b, t, t + 1));
    }
    EXPECT_EQ(fork.shared_pages(), 2);
    first.free();
    EXPECT_EQ(fork.shared_pages(), 0);
    expect_same(fork.keys(0, 0, 30), other.keys(0, 0, 30));
}

TEST(Cache, WritesAfterTruncationLeaveTheForkAlone) {
    Context context(1);
    const Tokens a(20, 1), b(20, 2);
    const CachePool pool = poisoned(small_config());
    Cache cache = pool.create();
    step(context, cache, a, 0, 11);
    const Cache kept = cache.fork();
    cache.truncate(5);
    EXPECT_EQ(cache.pages(), 2);
    expect_near(step(context, cache, a, 5, 20), plain(context, a, 5, 20), 2e-6);
    expect_same(kept.keys(0, 0, 11), part(a.k, 0, 11));
    cache.truncate(0);
    EXPECT_EQ(cache.pages(), 0);
    EXPECT_EQ(cache.next_position(), 0);
    expect_near(step(context, cache, b, 0, 9), plain(context, b, 0, 9), 2e-6);
    expect_same(kept.keys(0, 0, 11), part(a.k, 0, 11));
}

TEST(Cache, LayersOfAStepComeOneAfterTheOther) {
    Context context(1);
    CacheConfig config = small_config();
    config.layers = 3;
    const CachePool pool = poisoned(config);
    Cache cache = pool.create();
    const Tokens layers[3] = {Tokens(12, 1), Tokens(12, 2), Tokens(12, 3)};
    std::int64_t at = 0;
    Cache fork;
    for (const std::int64_t count : {5, 1, 6}) {
        for (const std::int64_t layer : {1, 0, 2}) {
            Answer got(count);
            const Tokens& t = layers[layer];
            cached_attend(context, {.caches = {&cache}, .layer = layer}, part(t.q, at, at + count),
                          part(t.k, at, at + count), part(t.v, at, at + count), {.out = got.out, .lse = got.lse},
                          {.causal = true});
            expect_near(got, plain(context, t, at, at + count), 2e-6);
            EXPECT_EQ(cache.length(layer), at + count);
            EXPECT_EQ(cache.length(), layer == 2 ? at + count : at);
            if (at == 5 && layer == 0) { fork = cache.fork(); }  // between two layers of a step
        }
        at += count;
    }
    EXPECT_EQ(fork.length(1), 6);
    EXPECT_EQ(fork.length(2), 5);
    const Tokens& t = layers[2];
    Answer got(1);
    cached_attend(context, {.caches = {&fork}, .layer = 2}, part(t.q, 5, 6), part(t.k, 5, 6), part(t.v, 5, 6),
                  {.out = got.out, .lse = got.lse}, {.causal = true});
    expect_near(got, plain(context, t, 5, 6), 2e-6);
}

TEST(Cache, CrossAttentionIsFilledOnce) {
    Context context(1);
    const Tokens source(9), target(4, 5);
    const CachePool pool = poisoned(small_config());
    Cache cache = pool.create();
    cache_append(context, {.caches = {&cache}}, source.k, source.v);
    Answer got(4), expected(4);
    cached_attend(context, {.caches = {&cache}}, target.q, {}, {}, {.out = got.out, .lse = got.lse});
    attend(context, target.q, source.k, source.v, {.out = expected.out, .lse = expected.lse});
    expect_near(got, expected, 2e-6);
    EXPECT_EQ(cache.length(), 9);
}

TEST(Cache, EveryTypeOfInput) {
    Context context(1);
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
        const Tokens tokens(20, 1, dtype);
        const CachePool pool = poisoned(small_config());
        Cache cache = pool.create();
        const double tolerance = dtype == DType::bf16 ? 0.02 : dtype == DType::f16 ? 2e-3 : 2e-6;
        expect_near(step(context, cache, tokens, 0, 12), plain(context, tokens, 0, 12), tolerance);
        expect_near(step(context, cache, tokens, 12, 20), plain(context, tokens, 12, 20), tolerance);
    }
}

TEST(Cache, BytesAreCounted) {
    CacheConfig config{.layers = 3, .kv_heads = 2, .head_size = 128, .value_size = 64, .page_size = 16, .pages = 10};
    const std::pair<CacheStorage, std::int64_t> per_row[] = {{CacheStorage::f32, 192 * 4},
                                                             {CacheStorage::bf16, 192 * 2},
                                                             {CacheStorage::f16, 192 * 2},
                                                             {CacheStorage::i8, 192 + 2 * 4},
                                                             {CacheStorage::i4, 96 + (4 + 2) * 4}};
    for (const auto& [storage, bytes] : per_row) {
        config.storage = storage;
        EXPECT_EQ(cache_bytes_per_token(config), 3 * 2 * bytes) << name_of(storage);
        EXPECT_EQ(cache_bytes_per_page(config), 3 * 2 * bytes * 16) << name_of(storage);
        const CachePool pool = poisoned(config);
        EXPECT_EQ(pool.bytes(), 3 * 2 * bytes * 160);
        EXPECT_EQ(pool.used_bytes(), 0);
    }
    config.kind = CacheKind::latent;
    config.kv_heads = 1;
    config.head_size = 576;
    config.value_size = 512;
    config.storage = CacheStorage::bf16;
    EXPECT_EQ(cache_bytes_per_token(config), 3 * 576 * 2) << "r + p numbers, once";
}

}  // namespace
}  // namespace heed::testing
