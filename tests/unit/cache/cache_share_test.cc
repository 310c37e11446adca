/// A prefix that several caches share, attended to once.
#include "base/access.h"
#include "cache/cached_step.h"
#include "unit/cache/cache_testing.h"

namespace heed::testing {
namespace {

/// Caches that go on from shared prefixes: 0..2 from one of 32 tokens, 3 and 4 from one that leaves it at 12, 5 alone.
struct Family {
    CachePool pool = poisoned(small_config(4, 200));
    std::vector<Cache> caches;
    std::vector<std::int64_t> lengths;

    explicit Family(Context& context) {
        Cache root = pool.create();
        step(context, root, Tokens(12, 1), 0, 12);
        Cache branch = root.fork(), other = root.fork();
        const Tokens more(32, 2), less(30, 3), alone(25, 4);
        step(context, branch, more, 12, 32);
        step(context, other, less, 12, 25);
        for (int n = 0; n < 3; ++n) { caches.push_back(branch.fork()); }
        for (int n = 0; n < 2; ++n) { caches.push_back(other.fork()); }
        caches.push_back(pool.create());
        step(context, caches[5], alone, 0, 21);
        for (std::size_t n = 0; n < 5; ++n) {
            const Tokens own(3, 20 + static_cast<unsigned>(n));
            step(context, caches[n], own, 0, static_cast<std::int64_t>(n) % 3);
        }
    }
    std::vector<Cache*> forks(std::vector<Cache>& memory) const {
        std::vector<Cache*> pointers;
        memory.clear();
        for (const Cache& cache : caches) { memory.push_back(cache.fork()); }
        for (Cache& cache : memory) { pointers.push_back(&cache); }
        return pointers;
    }
};

TEST(CacheShare, EqualsThePlainResult) {
    Context context(2);
    const Family family(context);
    const Tensor slopes = random(DType::f32, {heads}, 1), sinks = random(DType::f32, {heads}, 2);
    const std::vector<std::int64_t> counts{1, 2, 1, 3, 1, 1};
    for (const DType dtype : {DType::f32, DType::bf16}) {
        const Tokens tokens(9, 50, dtype);
        for (const AttentionOptions& options :
             {AttentionOptions{.causal = true}, AttentionOptions{.causal = true, .window = {.left = 20, .right = -1}},
              AttentionOptions{.causal = true, .alibi_slopes = slopes, .softcap = 3, .sinks = sinks},
              AttentionOptions{.scale = 0.2}}) {
            Answer results[2] = {Answer(9, dtype), Answer(9, dtype)};
            for (const SharedPrefix share : {SharedPrefix::never, SharedPrefix::always}) {
                std::vector<Cache> memory;
                Answer& result = results[share == SharedPrefix::always ? 1 : 0];
                cached_attend(context, {.caches = family.forks(memory), .tokens = counts, .share = share}, tokens.q,
                              tokens.k, tokens.v, {.out = result.out, .lse = result.lse}, options);
            }
            expect_near(results[1], results[0], dtype == DType::f32 ? 3e-6 : 0.01);
        }
    }
}

TEST(CacheShare, GroupsAreThoseThatSaveMost) {
    Context context(1);
    const Family family(context);
    CachedStep step;
    for (const Cache& cache : family.caches) {
        step.caches.push_back(detail::Access::state(cache));
        step.lengths.push_back(cache.length());
    }
    step.pool = step.caches.front()->pool.get();
    step.cu_q.assign(family.caches.size() + 1, 0);
    step.share = SharedPrefix::always;
    const std::vector<PrefixGroup> groups_found = prefix_groups(step, AttentionProblem(), {0, 1, 2, 3, 4, 5});
    // All five have 12 tokens in common, 12 pages saved; the three and the two save 16 and 6.
    ASSERT_EQ(groups_found.size(), 2U);
    for (const PrefixGroup& group : groups_found) {
        const bool three = group.members.size() == 3;
        EXPECT_EQ(group.members, three ? (std::vector<std::size_t>{0, 1, 2}) : (std::vector<std::size_t>{3, 4}));
        EXPECT_EQ(group.pages, three ? 8 : 6);
    }
    step.share = SharedPrefix::automatic;
    EXPECT_TRUE(prefix_groups(step, AttentionProblem(), {0, 1, 2, 3, 4, 5}).empty()) << "too few keys to pay";
}

TEST(CacheShare, OptionsThatDependOnTheEntryAreNotShared) {
    Context context(1);
    const Family family(context);
    const Tokens tokens(6, 50);
    const Tensor bias = random(DType::f32, {6, 1, 1, 35}, 3), slopes = random(DType::f32, {6, heads}, 4);
    for (const AttentionOptions& options : {AttentionOptions{.bias = bias}, AttentionOptions{.alibi_slopes = slopes},
                                            AttentionOptions{.pattern = patterns::parse("causal & window(9, 0)")},
                                            AttentionOptions{.dropout = {.p = 0.2, .seed = 1}}}) {
        Answer results[2] = {Answer(6), Answer(6)};
        for (const SharedPrefix share : {SharedPrefix::never, SharedPrefix::always}) {
            std::vector<Cache> memory;
            Answer& result = results[share == SharedPrefix::always ? 1 : 0];
            cached_attend(context, {.caches = family.forks(memory), .share = share}, tokens.q, tokens.k, tokens.v,
                          {.out = result.out, .lse = result.lse}, options);
        }
        expect_same(results[1], results[0]);
    }
}

TEST(CacheShare, NeverMeansTheSameBitsInAnyCompany) {
    Context context(2);
    const Family family(context);
    const Tokens tokens(6, 50);
    Answer together(6);
    std::vector<Cache> memory;
    const std::vector<Cache*> caches = family.forks(memory);
    cached_attend(context, {.caches = caches, .share = SharedPrefix::never}, tokens.q, tokens.k, tokens.v,
                  {.out = together.out, .lse = together.lse}, {.causal = true});
    for (std::int64_t n = 0; n < 6; ++n) {
        Cache alone = family.caches[static_cast<std::size_t>(n)].fork();
        const Answer got = step(context, alone, tokens, n, n + 1);
        expect_same(got.out, part(together.out, n, n + 1));
        expect_same(got.lse, part(together.lse, n, n + 1));
    }
}

TEST(CacheShare, ALongPrefixIsSharedWithoutAsking) {
    Context context(2);
    const CachePool pool = poisoned(small_config(16, 400));
    Cache root = pool.create();
    const Tokens prefix(1000, 1), tokens(3, 9);
    cache_append(context, {.caches = {&root}}, prefix.k, prefix.v);
    Cache a = root.fork(), b = root.fork(), c = root.fork(), d = root.fork(), e = root.fork(), f = root.fork();
    Answer apart(3), shared(3), automatic(3);
    const auto run = [&](Answer& answer, SharedPrefix share) {
        cached_attend(context, {.caches = {&a, &b, &c}, .share = share}, tokens.q, tokens.k, tokens.v,
                      {.out = answer.out, .lse = answer.lse}, {.causal = true});
        for (Cache* cache : {&a, &b, &c}) { cache->truncate(1000); }
    };
    run(apart, SharedPrefix::never);
    run(shared, SharedPrefix::always);
    run(automatic, SharedPrefix::automatic);
    expect_same(automatic, shared);
    expect_near(automatic, apart, 3e-6);
}

}  // namespace
}  // namespace heed::testing
