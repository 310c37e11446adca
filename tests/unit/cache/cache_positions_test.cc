/// Rotation on the way into the cache, eviction, and the positions that tokens keep or get.
#include "unit/cache/cache_testing.h"

namespace heed::testing {
namespace {

constexpr std::int64_t rotary_size = 4;

CacheConfig rotating(CachePositions positions = CachePositions::original, RopeScaling scaling = {}) {
    CacheConfig config = small_config();
    config.rope = Rope{.size = rotary_size, .theta = 100, .pairing = Pairing::halves, .scaling = std::move(scaling)};
    config.positions = positions;
    return config;
}

/// Attention of query tokens over kept tokens, each rotated at its position.
Answer by_hand(Context& context, const Tokens& tokens, const std::vector<std::int64_t>& kept,
               const std::vector<std::int64_t>& key_positions, std::int64_t begin, std::int64_t end,
               const std::vector<std::int64_t>& query_positions, const RopeTable& table,
               AttentionOptions options = {.causal = true}) {
    std::vector<View> k, v;
    for (const std::int64_t t : kept) {
        k.push_back(part(tokens.k, t, t + 1));
        v.push_back(part(tokens.v, t, t + 1));
    }
    Tensor keys = joined(k);
    const Tensor values = joined(v);
    Tensor queries = joined({part(tokens.q, begin, end)});
    const View key_view(DType::i64, key_positions.data(), Shape{1, static_cast<std::int64_t>(kept.size())});
    const View query_view(DType::i64, query_positions.data(), Shape{1, end - begin});
    rope(context, keys, keys, table, {.positions = key_view});
    rope(context, queries, queries, table, {.positions = query_view});
    options.key_positions = key_view;
    options.query_positions = query_view;
    Answer answer(end - begin);
    attend(context, queries, keys, values, {.out = answer.out, .lse = answer.lse}, options);
    return answer;
}

std::vector<std::int64_t> counting(std::int64_t begin, std::int64_t end) {
    std::vector<std::int64_t> numbers;
    for (std::int64_t n = begin; n < end; ++n) { numbers.push_back(n); }
    return numbers;
}

TEST(CachePositions, KeysAreRotatedAsTheyAreWritten) {
    Context context(2);
    const Tokens tokens(20);
    const CacheConfig config = rotating();
    const RopeTable table = rope_table(*config.rope);
    const CachePool pool = poisoned(config);
    Cache cache = pool.create();
    for (const auto& [begin, end] : {std::pair<std::int64_t, std::int64_t>{0, 11}, {11, 12}, {12, 20}}) {
        const Answer got = step(context, cache, tokens, begin, end);
        expect_near(
            got, by_hand(context, tokens, counting(0, end), counting(0, end), begin, end, counting(begin, end), table),
            3e-6);
    }
    // What was dropped does not move what stays.
    cache.drop(3, 9);
    std::vector<std::int64_t> kept = counting(0, 3);
    for (const std::int64_t t : counting(9, 20)) { kept.push_back(t); }
    EXPECT_EQ(cache.positions(), kept);
    EXPECT_EQ(cache.next_position(), 20);
    const Tokens more(22);
    kept.push_back(20);
    kept.push_back(21);
    expect_near(step(context, cache, more, 20, 22), by_hand(context, more, kept, kept, 20, 22, {20, 21}, table), 3e-6);
}

TEST(CachePositions, DynamicScalingIsRightAtEveryLength) {
    Context context(1);
    const Tokens tokens(30);
    for (const RopeScaling& scaling :
         {RopeScaling(rope_scaling::DynamicNtk{.factor = 2, .trained = 8}),
          RopeScaling(
              rope_scaling::LongRope{.factor = 4, .trained = 8, .short_factors = {1, 1.5}, .long_factors = {2, 6}})}) {
        CacheConfig config = rotating(CachePositions::original, scaling);
        const CachePool pool = poisoned(config);
        Cache cache = pool.create();
        std::int64_t at = 0;
        for (const std::int64_t count : {5, 1, 1, 1, 1, 1, 12, 1}) {
            const std::int64_t end = at + count;
            const RopeTable table = rope_table(*config.rope, end);
            expect_near(step(context, cache, tokens, at, end),
                        by_hand(context, tokens, counting(0, end), counting(0, end), at, end, counting(at, end), table),
                        3e-6, std::string(name_of(scaling)) + " at " + std::to_string(end));
            at = end;
        }
        // Planned for from the start: one table, rotated on the way in.
        config.rope_length = 23;
        const CachePool planned = poisoned(config);
        Cache other = planned.create();
        const RopeTable table = rope_table(*config.rope, 23);
        expect_near(step(context, other, tokens, 0, 9),
                    by_hand(context, tokens, counting(0, 9), counting(0, 9), 0, 9, counting(0, 9), table), 3e-6);
    }
}

TEST(CachePositions, AWindowIsTheWindowOfAttention) {
    Context context(1);
    const Tokens tokens(40);
    const CachePool pool = poisoned(small_config());
    Cache cache = pool.create(), whole = pool.create();
    for (std::int64_t t = 0; t < 40; ++t) {
        const Answer got = step(context, cache, tokens, t, t + 1);
        expect_near(got, step(context, whole, tokens, t, t + 1, {.causal = true, .window = {.left = 8, .right = -1}}),
                    2e-6);
        cache.keep_window(0, 8);
        EXPECT_LE(cache.pages(), 3);
    }
    EXPECT_EQ(cache.length(), 8);
    EXPECT_EQ(cache.next_position(), 40);
}

/// StreamingLLM by hand: what is kept, at positions 0, 1, 2, ... in the cache.
class Streaming : public ::testing::TestWithParam<std::pair<CacheStorage, double>> {};
TEST_P(Streaming, PositionsAreSlots) {
    Context context(1);
    constexpr std::int64_t sinks = 3, recent = 9;
    const auto [storage, tolerance] = GetParam();
    const Tokens tokens(300);
    for (const bool by_page : {true, false}) {
        CacheConfig config = rotating(CachePositions::slots);
        config.sinks = sinks;
        config.storage = storage;
        if (!by_page) { config = contiguous_cache(config, 20); }
        const RopeTable table = rope_table(*config.rope);
        const CachePool pool = poisoned(config);
        Cache cache = pool.create();
        std::vector<std::int64_t> kept;
        for (std::int64_t t = 0; t < 300;) {
            const std::int64_t count = t == 0 ? 5 : t % 7 == 3 ? 2 : 1;
            const std::int64_t end = std::min<std::int64_t>(t + count, 300);
            for (std::int64_t n = t; n < end; ++n) { kept.push_back(n); }
            const auto length = static_cast<std::int64_t>(kept.size());
            const Answer got = step(context, cache, tokens, t, end);
            const Answer expected = by_hand(context, tokens, kept, counting(0, length), t, end,
                                            counting(length - (end - t), length), table);
            expect_near(got, expected, tolerance, "token " + std::to_string(t));
            if (length > sinks + recent) { kept.erase(kept.begin() + sinks, kept.end() - recent); }
            cache.keep_window(sinks, recent);
            ASSERT_EQ(cache.length(), static_cast<std::int64_t>(kept.size()));
            EXPECT_LE(cache.pages(), by_page ? 5 : 1);
            t = end;
        }
        EXPECT_EQ(cache.positions(), counting(0, sinks + recent));
    }
}
INSTANTIATE_TEST_SUITE_P(CachePositions, Streaming,
                         ::testing::Values(std::pair(CacheStorage::f32, 4e-6), std::pair(CacheStorage::bf16, 0.03),
                                           std::pair(CacheStorage::i8, 0.03)));

TEST(CachePositions, SlotsWithoutSinksAndWithAForkBesideThem) {
    Context context(1);
    const Tokens tokens(30);
    CacheConfig config = rotating(CachePositions::slots);
    const CachePool pool = poisoned(config);
    const RopeTable table = rope_table(*config.rope);
    Cache cache = pool.create();
    step(context, cache, tokens, 0, 20);
    const Cache fork = cache.fork();
    const Tensor before = fork.keys(0, 0, 20);
    cache.drop(6, 11);  // the six before it are rotated on, in pages of their own
    expect_same(fork.keys(0, 0, 20), before);
    std::vector<std::int64_t> kept = counting(0, 6);
    for (const std::int64_t t : counting(11, 22)) { kept.push_back(t); }
    expect_near(step(context, cache, tokens, 20, 22),
                by_hand(context, tokens, kept, counting(0, 17), 20, 22, {15, 16}, table), 4e-6);
    cache.drop(10, 17);  // the end: nothing moves
    kept.resize(10);
    kept.push_back(22);
    expect_near(step(context, cache, tokens, 22, 23),
                by_hand(context, tokens, kept, counting(0, 11), 22, 23, {10}, table), 4e-6);
}

TEST(CachePositions, DynamicScalingCountsSlots) {
    Context context(1);
    const Tokens tokens(30);
    CacheConfig config = rotating(CachePositions::slots, rope_scaling::DynamicNtk{.factor = 2, .trained = 8});
    const CachePool pool = poisoned(config);
    Cache cache = pool.create();
    step(context, cache, tokens, 0, 20);
    cache.keep_window(2, 10);
    std::vector<std::int64_t> kept{0, 1};
    for (const std::int64_t t : counting(10, 21)) { kept.push_back(t); }
    expect_near(step(context, cache, tokens, 20, 21),
                by_hand(context, tokens, kept, counting(0, 13), 20, 21, {12}, rope_table(*config.rope, 13)), 3e-6);
}

TEST(CachePositions, DroppingGivesPagesBack) {
    Context context(1);
    const Tokens tokens(40);
    const CachePool pool = poisoned(small_config(4, 10));
    Cache cache = pool.create();
    step(context, cache, tokens, 0, 40);
    EXPECT_EQ(pool.free_pages(), 0);
    cache.drop(4, 16);
    EXPECT_EQ(pool.free_pages(), 3);
    cache.drop(5, 7);  // inside a page
    EXPECT_EQ(pool.free_pages(), 3);
    EXPECT_EQ(cache.pages(), 7);
    cache.drop(5, 6);
    EXPECT_EQ(cache.length(), 25);
    cache.drop(0, 25);
    EXPECT_EQ(pool.free_pages(), 10);
    EXPECT_EQ(cache.next_position(), 40);
}

}  // namespace
}  // namespace heed::testing
