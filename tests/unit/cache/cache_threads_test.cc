/// One pool, several threads, each with its own caches.
#include <atomic>
#include <thread>

#include "unit/cache/cache_testing.h"

namespace heed::testing {
namespace {

TEST(CacheThreads, CachesOverOnePool) {
    const CachePool pool = poisoned(small_config(2, 60));
    const Tokens prompt(9, 1);
    Context context(1);
    Cache root = pool.create();
    step(context, root, prompt, 0, 9);
    std::atomic<int> wrong{0}, full{0};
    std::vector<Cache> forks;
    for (int n = 0; n < 3; ++n) { forks.push_back(root.fork()); }
    const auto work = [&](int n) {
        Context own(1);
        const Tokens tokens(40, 10 + static_cast<unsigned>(n));
        for (int round = 0; round < 40; ++round) {
            Cache cache =
                forks[static_cast<std::size_t>(n)].fork();  // shares its last page with the other threads' forks
            Cache other = pool.create();
            try {
                std::int64_t at = 9;
                for (const std::int64_t count : {1, 3, 1, 7}) {
                    const Answer got = step(own, cache, tokens, at, at + count);
                    step(own, other, tokens, at, at + count);
                    // The definition: the prompt, then this thread's tokens.
                    Answer expected(count);
                    const Tensor k = joined({prompt.k, part(tokens.k, 9, at + count)}),
                                 v = joined({prompt.v, part(tokens.v, 9, at + count)});
                    attend(own, part(tokens.q, at, at + count), k, v, expected.out, {.causal = true});
                    for (std::int64_t i = 0; i < got.out.elements(); ++i) {
                        if (!(std::abs(get(got.out, i) - get(expected.out, i)) < 1e-4)) { ++wrong; }
                    }
                    at += count;
                }
                Cache fork = cache.fork();
                cache.keep_window(1, 4);
                fork.truncate(10);
                step(own, fork, tokens, 10, 13);
            } catch (const CacheFull&) { ++full; }
        }
    };
    std::vector<std::thread> threads;
    for (int n = 0; n < 3; ++n) { threads.emplace_back(work, n); }
    for (std::thread& thread : threads) { thread.join(); }
    EXPECT_EQ(wrong, 0);
    EXPECT_LT(full, 120) << "some rounds had the pages they needed";
    forks.clear();
    expect_same(root.keys(0, 0, 9), prompt.k);
    EXPECT_EQ(pool.free_pages(), 60 - 5);
    root.free();
    EXPECT_EQ(pool.free_pages(), 60);
}

}  // namespace
}  // namespace heed::testing
