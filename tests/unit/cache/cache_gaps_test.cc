/// What dropping leaves behind: rows that nobody reads, in every storage and with every kernel.
#include <filesystem>

#include "base/access.h"
#include "support/kernels.h"
#include "support/sample.h"
#include "unit/cache/cache_testing.h"

namespace heed::testing {
namespace {

constexpr CacheStorage storages_with_gaps[] = {CacheStorage::f32, CacheStorage::bf16, CacheStorage::f16,
                                               CacheStorage::i8, CacheStorage::i4};

/// Keys, values and queries of one sequence, for pools of attention and of latents alike.
struct Rows {
    Tensor q, k, v, up_key, up_value;

    Rows(const CacheConfig& c, std::int64_t query_heads, std::int64_t count)
        : q(random(DType::f32, {1, query_heads, count, c.head_size}, 1)),
          k(random(DType::f32, {1, c.kv_heads, count, c.head_size}, 2)),
          v(random(DType::f32, {1, c.kv_heads, count, c.value_size}, 3)),
          up_key(random(DType::f32, {query_heads, c.value_size, c.value_size}, 4, 0.2)),
          up_value(random(DType::f32, {query_heads, c.value_size, c.value_size}, 5, 0.2)) {}

    Answer attend(Context& context, Cache& cache, std::int64_t begin, std::int64_t end,
                  const AttentionOptions& options) const {
        Answer answer(end - begin, DType::f32, v.shape()[3], q.shape()[1]);
        if (cache.pool().config().kind == CacheKind::latent) {
            cached_mla_attend(context, {.caches = {&cache}}, part(q, begin, end), part(k, begin, end),
                              {up_key, up_value}, {.out = answer.out, .lse = answer.lse}, options);
        } else {
            cached_attend(context, {.caches = {&cache}}, part(q, begin, end), part(k, begin, end), part(v, begin, end),
                          {.out = answer.out, .lse = answer.lse}, options);
        }
        return answer;
    }
    void append(Context& context, Cache& cache, std::int64_t begin, std::int64_t end) const {
        const bool latent = cache.pool().config().kind == CacheKind::latent;
        cache_append(context, {.caches = {&cache}}, part(k, begin, end), latent ? View() : part(v, begin, end));
    }
};

CacheConfig gap_config(CacheKind kind, std::int64_t size, CacheStorage storage, std::int64_t page_size) {
    const bool latent = kind == CacheKind::latent;
    return {.kind = kind,
            .kv_heads = latent ? 1 : 2,
            .head_size = size,
            .value_size = latent ? size / 2 : size,
            .storage = storage,
            .page_size = page_size,
            .pages = 400 / page_size + 2};
}

/// Every row that is not a token is NaN all the time, and the answers are those of the same tokens without a gap, to
/// the bit: for pages of any size, for one query and for several.
TEST(CacheGaps, AreNeverRead) {
    Context context(2);
    Sample sample;
    for (const std::string& kernel : testing::runnable_kernels()) {
        for (const CacheKind kind : {CacheKind::attention, CacheKind::latent}) {
            for (const std::int64_t size : {64, 128, 36}) {
                for (const CacheStorage storage : storages_with_gaps) {
                    if (!sample.takes()) { continue; }
                    const Rows rows(gap_config(kind, size, storage, 16), 4, 100);
                    std::vector<Answer> first;
                    for (const std::int64_t page_size : {1, 7, 32, 64, 128}) {
                        const CachePool pool = poisoned(gap_config(kind, size, storage, page_size));
                        Cache cache = pool.create();
                        std::vector<Answer> answers;
                        std::int64_t next = 70;
                        const auto attend = [&](std::int64_t count, bool causal) {
                            answers.push_back(
                                rows.attend(context, cache, next, next + count, {.causal = causal, .kernel = kernel}));
                            next += count;
                            poison(pool, {&cache});
                        };
                        rows.append(context, cache, 0, 70);
                        cache.keep_window(4, 50);
                        poison(pool, {&cache});
                        attend(1, true);
                        attend(3, true);
                        cache.drop(20, 21);
                        cache.drop(33, 36);
                        poison(pool, {&cache});
                        attend(1, false);
                        attend(11, true);
                        cache.drop(0, 1);
                        cache.truncate(40);
                        poison(pool, {&cache});
                        attend(2, true);
                        if (first.empty()) { first = std::move(answers); }
                        for (std::size_t n = 0; n < answers.size(); ++n) {
                            const std::string what = kernel + " " + std::string(name_of(storage)) + " size " +
                                                     std::to_string(size) + " pages of " + std::to_string(page_size);
                            expect_same(answers[n], first[n], what);
                            for (std::int64_t i = 0; i < answers[n].out.elements(); ++i) {
                                ASSERT_TRUE(std::isfinite(answers[n].out.as<float>()[i])) << what;
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Whether a token stands behind a gap or not is nothing that bits show; a window, ALiBi and a bias count as before.
TEST(CacheGaps, ACacheWithThemIsOneWithout) {
    Context context(2);
    constexpr std::int64_t kept = 60, dropped = 40;
    const Tensor slopes = random(DType::f32, {4}, 7, 0.1);
    const Tensor bias = random(DType::f32, {1, 4, 1, kept + 1}, 8);
    for (const CacheStorage storage : storages_with_gaps) {
        const CacheConfig config = gap_config(CacheKind::attention, 64, storage, 16);
        const Rows rows(config, 4, 120);
        for (const AttentionOptions& options :
             {AttentionOptions{.causal = true}, AttentionOptions{.causal = true, .window = {.left = 30, .right = -1}},
              AttentionOptions{.causal = true, .alibi_slopes = slopes},
              AttentionOptions{.causal = true, .bias = bias}}) {
            const CachePool pool = poisoned(config);
            Cache gaps = pool.create(), none = pool.create();
            rows.append(context, gaps, 0, kept + dropped);
            gaps.drop(20, 20 + dropped);
            std::vector<std::int64_t> positions;
            for (std::int64_t t = 0; t < kept; ++t) { positions.push_back(t < 20 ? t : t + dropped); }
            const View all(DType::i64, positions.data(), Shape{1, kept});
            const Tensor k = joined({part(rows.k, 0, 20), part(rows.k, 20 + dropped, kept + dropped)});
            const Tensor v = joined({part(rows.v, 0, 20), part(rows.v, 20 + dropped, kept + dropped)});
            cache_append(context, {.caches = {&none}}, k, v, all);
            EXPECT_EQ(gaps.next_position(), none.next_position());
            poison(pool, {&gaps, &none});
            expect_same(rows.attend(context, gaps, 100, 101, options), rows.attend(context, none, 100, 101, options),
                        std::string(name_of(storage)));
        }
    }
}

/// A page that a gap has cut in two is still one page.
TEST(CacheGaps, APageWithThemIsNobodyElses) {
    Context context(1);
    const Tokens tokens(20);
    const CachePool pool = poisoned(small_config(8, 1));
    Cache cache = pool.create();
    step(context, cache, tokens, 0, 5);
    cache.drop(1, 2);
    cache.drop(2, 3);
    EXPECT_EQ(cache.pages(), 1);
    EXPECT_EQ(cache.shared_pages(), 0);
    step(context, cache, tokens, 5, 8);  // the rest of the page
    EXPECT_EQ(cache.length(), 6);
    EXPECT_EQ(cache.pages(), 1);
}

TEST(CacheGaps, AreLeftOutOfFiles) {
    Context context(1);
    const Tokens tokens(40);
    const std::filesystem::path path = std::filesystem::temp_directory_path() / "heed_cache_gaps.safetensors";
    const CachePool pool = poisoned(small_config(4, 10)), small = poisoned(small_config(4, 2));
    Cache cache = pool.create();
    step(context, cache, tokens, 0, 20);
    for (std::int64_t n = 1; n < 6; ++n) { cache.drop(n, n + 3); }  // a token of every page stays
    EXPECT_EQ(cache.length(), 5);
    EXPECT_EQ(cache.pages(), 5);
    cache.save(path);
    Cache restored = small.restore(path);
    std::filesystem::remove(path);
    EXPECT_EQ(restored.pages(), 2);
    EXPECT_EQ(restored.positions(), cache.positions());
    poison(small, {&restored});
    expect_same(step(context, cache, tokens, 20, 23), step(context, restored, tokens, 20, 23));
}

/// So that decoding does not wait for rows that lie here and there.
TEST(CacheGaps, ManyOfThemAreClosed) {
    Context context(1);
    const Tokens tokens(1100);
    for (const std::int64_t page_size : {4, 64}) {
        const CachePool pool = poisoned(small_config(page_size, 3000 / page_size));
        Cache cache = pool.create(), shared = pool.create();
        step(context, cache, tokens, 0, 1024);
        step(context, shared, tokens, 0, 1024);
        const Cache fork = shared.fork();
        const auto gaps = [&](const Cache& of) {
            const std::vector<CacheRun>& runs = detail::Access::state(of)->runs;
            std::int64_t count = 0;
            for (std::size_t n = 1; n < runs.size(); ++n) {
                count += runs[n - 1].end < page_size || runs[n].begin > 0 ? 1 : 0;
            }
            return count;
        };
        for (std::int64_t n = 0; n < 199; ++n) {
            cache.drop(4 * n + 1, 4 * n + 2);
            shared.drop(4 * n + 1, 4 * n + 2);
            ASSERT_LE(gaps(cache), 4 + cache.length() / 64);
            poison(pool, {&cache, &shared, &fork});
        }
        EXPECT_EQ(cache.length(), 825);
        EXPECT_LE(cache.pages(), 825 / page_size + 25);
        EXPECT_GT(gaps(shared), 150) << "what another cache has too stays where it is";
        expect_same(step(context, cache, tokens, 1024, 1025), step(context, shared, tokens, 1024, 1025));
        expect_near(fork.keys(0, 0, 1024), part(tokens.k, 0, 1024), 0);
    }
}

TEST(CacheGaps, TruncatingToItsOwnLengthIsNothing) {
    Context context(1);
    const Tokens tokens(20);
    const CachePool pool = poisoned(small_config());
    Cache cache = pool.create();
    step(context, cache, tokens, 0, 10);
    cache.drop(7, 10);
    EXPECT_EQ(cache.next_position(), 10);
    cache.truncate(7);
    EXPECT_EQ(cache.next_position(), 10);
    cache.drop(0, 7);
    cache.truncate(0);
    EXPECT_EQ(cache.next_position(), 10);
    step(context, cache, tokens, 10, 12);
    EXPECT_EQ(cache.positions(), (std::vector<std::int64_t>{10, 11}));
    cache.truncate(1);
    EXPECT_EQ(cache.next_position(), 11);
}

/// No distance is so far that it would be mistaken for a gap's.
TEST(CacheGaps, PositionsMayBeFarApart) {
    Context context(1);
    const Tokens tokens(12);
    for (const std::int64_t far : {std::int64_t{1} << 27, std::int64_t{1} << 29, std::int64_t{1} << 40}) {
        const std::vector<std::int64_t> positions{0, 1, 2, 3, far, far + 1, far + 2, far + 3};
        const CachePool pool = poisoned(small_config());
        Cache cache = pool.create();
        cache_append(context, {.caches = {&cache}}, part(tokens.k, 0, 8), part(tokens.v, 0, 8),
                     View(DType::i64, positions.data(), Shape{1, 8}));
        cache.drop(1, 2);
        cache.drop(4, 5);
        poison(pool, {&cache});
        const Tensor k = joined({part(tokens.k, 0, 1), part(tokens.k, 2, 5), part(tokens.k, 6, 8)});
        const Tensor v = joined({part(tokens.v, 0, 1), part(tokens.v, 2, 5), part(tokens.v, 6, 8)});
        const std::vector<std::int64_t> left{0, 2, 3, far, far + 2, far + 3}, asked{1};
        const View query_view(DType::i64, asked.data(), Shape{1, 1});
        for (AttentionOptions options :
             {AttentionOptions{}, AttentionOptions{.window = {.left = 5, .right = -1}},
              AttentionOptions{.window = {.left = -1, .right = far + 1}}, AttentionOptions{.causal = true}}) {
            options.query_positions = query_view;
            Answer got(1), expected(1);
            cached_attend(context, {.caches = {&cache}}, part(tokens.q, 8, 9), {}, {}, {.out = got.out, .lse = got.lse},
                          options);
            options.key_positions = View(DType::i64, left.data(), Shape{1, 6});
            attend(context, part(tokens.q, 8, 9), k, v, {.out = expected.out, .lse = expected.lse}, options);
            expect_near(got, expected, 2e-6, std::to_string(far));
        }
    }
}

/// Sinks are the tokens that came first, whichever of them are left.
TEST(CacheGaps, UnrotatedKeysMoveWithTheirTokens) {
    Context context(1);
    const Tokens tokens(20);
    const auto run = [&](std::int64_t sinks, bool saved) {
        CacheConfig config = small_config();
        config.layers = 2;
        config.rope = Rope{.size = 4, .theta = 100};
        config.positions = CachePositions::slots;
        config.sinks = sinks;
        const CachePool pool = poisoned(config);
        Cache cache = pool.create();
        std::vector<Answer> answers;
        const auto attend = [&](std::int64_t begin, std::int64_t end) {
            for (const std::int64_t layer : {0, 1}) {
                Answer answer(end - begin);
                cached_attend(context, {.caches = {&cache}, .layer = layer}, part(tokens.q, begin, end),
                              part(tokens.k, begin, end), part(tokens.v, begin, end),
                              {.out = answer.out, .lse = answer.lse}, {.causal = true});
                answers.push_back(std::move(answer));
            }
        };
        attend(0, 8);
        cache.drop(0, 1);
        cache.drop(3, 4);
        attend(8, 9);
        if (saved) {
            const std::filesystem::path path = std::filesystem::temp_directory_path() / "heed_cache_sinks.safetensors";
            cache.save(path);
            cache = pool.restore(path);
            std::filesystem::remove(path);
        }
        cache.drop(1, 2);
        cache.drop(3, 5);
        Cache fork = cache.fork();
        fork.drop(1, 2);
        attend(9, 11);
        cache = std::move(fork);
        cache.truncate(1);  // tokens that come among the first again
        attend(11, 15);
        cache.drop(1, 2);
        cache.drop(2, 3);
        attend(15, 16);
        return answers;
    };
    const std::vector<Answer> expected = run(0, false);
    for (const std::int64_t sinks : {1, 2, 3, 6}) {
        for (const bool saved : {false, true}) {
            const std::vector<Answer> got = run(sinks, saved);
            for (std::size_t n = 0; n < got.size(); ++n) {
                expect_near(got[n], expected[n], 4e-6, std::to_string(sinks) + " sinks, answer " + std::to_string(n));
            }
        }
    }
}

TEST(CacheGaps, APoolHasNoMoreRowsThanItCanNumber) {
    const CacheConfig config{.head_size = 1, .value_size = 1, .page_size = 1 << 20, .pages = 1 << 11};
    EXPECT_THROW(CachePool pool(config), Error);
}

}  // namespace
}  // namespace heed::testing
