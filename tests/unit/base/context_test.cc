#include <gtest/gtest.h>

#include <heed/context.h>
#include <heed/error.h>

#include "base/place.h"
#include "base/pool.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <thread>
#include <vector>

#include <sys/resource.h>

namespace heed {
namespace {

TEST(Context, HasTheThreadsAskedFor) {
    EXPECT_EQ(Context(3).threads(), 3);
    EXPECT_GE(Context().threads(), 1);
    EXPECT_THROW(Context(-1), Error);
    EXPECT_THROW(Context(4097), Error);
}

TEST(Context, WorkspaceIsCountedAndGivenBack) {
    Context context(2);
    EXPECT_EQ(context.workspace_bytes(), 0U);
    void* memory = detail::pool_of(context).scratch(1).at_least(1000);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory) % 64, 0U);
    detail::pool_of(context).shared().at_least(500);
    EXPECT_EQ(context.workspace_bytes(), 1500U);
    EXPECT_EQ(detail::pool_of(context).scratch(1).at_least(10), memory);  // does not shrink, does not move
    context.release_workspace();
    EXPECT_EQ(context.workspace_bytes(), 0U);
}

constexpr detail::Effort efforts[] = {detail::Effort::alone, detail::Effort::awake, detail::Effort::wake};

TEST(Pool, RunsEveryTaskOnce) {
    for (const int threads : {1, 2, 7, 12}) {
        Context context(threads);
        for (const std::int64_t count : {0, 1, 2, 7, 23, 1000}) {
            for (const detail::Effort effort : efforts) {
                std::vector<std::atomic<int>> runs(static_cast<std::size_t>(count));
                std::atomic<bool> bad_worker{false};
                detail::parallel(detail::pool_of(context), count, effort, [&](std::int64_t index, int worker) {
                    runs[static_cast<std::size_t>(index)]++;
                    if (worker < 0 || worker >= threads) { bad_worker = true; }
                });
                for (const auto& n : runs) { ASSERT_EQ(n, 1); }
                EXPECT_FALSE(bad_worker);
            }
        }
    }
}

TEST(Pool, NoTwoTasksShareAWorkerAtOnce) {
    Context context(4);
    std::vector<std::atomic<int>> busy(4);
    std::atomic<bool> shared{false};
    for (int round = 0; round < 50; ++round) {
        detail::parallel(detail::pool_of(context), 64, true, [&](std::int64_t, int worker) {
            if (busy[static_cast<std::size_t>(worker)]++ != 0) { shared = true; }
            std::this_thread::yield();
            busy[static_cast<std::size_t>(worker)]--;
        });
    }
    EXPECT_FALSE(shared);
}

TEST(Pool, ManySmallRuns) {
    Context context(3);
    std::int64_t expected = 0;
    std::atomic<std::int64_t> sum{0};
    for (int round = 0; round < 6000; ++round) {
        const std::int64_t count = 2 + round % 29;
        // Stretches of one effort, long enough for workers to be woken, and all orders of two.
        const detail::Effort effort = efforts[round % 2 == 0 ? round / 1000 % 3 : round / 100 % 3];
        detail::parallel(detail::pool_of(context), count, effort, [&](std::int64_t index, int) { sum += index; });
        expected += count * (count - 1) / 2;
        ASSERT_EQ(sum, expected);  // all of a run is done when it returns
    }
}

TEST(Pool, AnExceptionComesOutAndThePoolGoesOn) {
    for (const int threads : {1, 4}) {
        Context context(threads);
        for (int round = 0; round < 150; ++round) {
            const detail::Effort effort = efforts[round / 50];
            EXPECT_THROW(detail::parallel(detail::pool_of(context), 50, effort,
                                          [&](std::int64_t index, int) {
                                              if (index == round % 50) { throw std::runtime_error("task"); }
                                          }),
                         std::runtime_error);
            std::atomic<int> runs{0};
            detail::parallel(detail::pool_of(context), 50, effort, [&](std::int64_t, int) { ++runs; });
            ASSERT_EQ(runs, 50);
        }
        EXPECT_THROW(
            detail::parallel(detail::pool_of(context), 20, true, [](std::int64_t, int) { throw std::bad_alloc(); }),
            std::bad_alloc);
    }
}

TEST(Pool, SmallWorkStaysOnTheCaller) {
    Context context(4);
    const auto caller = std::this_thread::get_id();
    detail::parallel(detail::pool_of(context), 10, false, [&](std::int64_t, int worker) {
        EXPECT_EQ(worker, 0);
        EXPECT_EQ(std::this_thread::get_id(), caller);
    });
}

TEST(Pool, NobodyIsWokenForASmallJob) {
    Context context(4);
    for (int round = 0; round < 3; ++round) {
        while (detail::pool_of(context).asleep() < 3) { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }
        detail::parallel(detail::pool_of(context), 10, detail::Effort::awake,
                         [&](std::int64_t, int worker) { EXPECT_EQ(worker, 0); });
    }
}

TEST(Pool, EffortGrowsWithTheWork) {
    EXPECT_EQ(detail::effort_for(0), detail::Effort::alone);
    EXPECT_EQ(detail::effort_for(1e6), detail::Effort::awake);
    EXPECT_EQ(detail::effort_for(1e9), detail::Effort::wake);
}

TEST(Pool, CallersFromSeveralThreadsTakeTurns) {
    Context context(3);
    std::atomic<std::int64_t> sum{0};
    std::atomic<int> inside{0};
    std::atomic<bool> together{false};
    std::vector<std::thread> callers;
    for (int n = 0; n < 4; ++n) {
        callers.emplace_back([&] {
            for (int round = 0; round < 200; ++round) {
                const auto lock = detail::pool_of(context).lock();
                if (inside++ != 0) { together = true; }
                detail::parallel(detail::pool_of(context), 10, true, [&](std::int64_t index, int) { sum += index; });
                --inside;
            }
        });
    }
    for (std::thread& caller : callers) { caller.join(); }
    EXPECT_EQ(sum, 4 * 200 * 45);
    EXPECT_FALSE(together);
}

TEST(Pool, SeveralContextsRunSideBySide) {
    std::vector<std::thread> callers;
    std::atomic<std::int64_t> sum{0};
    for (int n = 0; n < 3; ++n) {
        callers.emplace_back([&] {
            Context own(2);
            for (int round = 0; round < 200; ++round) {
                detail::parallel(detail::pool_of(own), 10, true, [&](std::int64_t index, int) { sum += index; });
            }
        });
    }
    for (std::thread& caller : callers) { caller.join(); }
    EXPECT_EQ(sum, 3 * 200 * 45);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(ContextDeathTest, TooManyThreadsIsAnExceptionAndNotTheEnd) {
    ::testing::FLAGS_gtest_death_test_style = "threadsafe";
    const auto run = [] {
        const rlimit little{std::size_t{256} << 20, std::size_t{256} << 20};  // some thirty stacks of 8 MB
        if (setrlimit(RLIMIT_AS, &little) != 0) { std::_Exit(3); }
        try {
            Context context(4096);
        } catch (const std::exception&) { std::_Exit(7); }
        std::_Exit(4);
    };
    EXPECT_EXIT(run(), ::testing::ExitedWithCode(7), "");
}
#endif

}  // namespace
}  // namespace heed
