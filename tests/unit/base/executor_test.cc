#include <gtest/gtest.h>

#include <heed/attention.h>
#include <heed/context.h>

#include "base/float_mode.h"
#include "base/place.h"
#include "base/pool.h"

#include <atomic>
#include <cstring>
#include <functional>
#include <limits>
#include <stdexcept>
#include <thread>
#include <vector>

namespace heed {
namespace {

using Member = void (*)(void*, int);

/// Runs members in whatever way a test wants.
class AnyExecutor final : public Executor {
public:
    using Run = std::function<void(int wanted, Member member, void* job)>;
    AnyExecutor(int threads, Run run) : threads_(threads), run_(std::move(run)) {}
    int concurrency() override { return threads_; }
    bool inside() override { return inside_; }
    void run(int wanted, Member member, void* job) override { run_(wanted, member, job); }
    void set_threads(int threads) { threads_ = threads; }
    void set_inside(bool inside) { inside_ = inside; }

private:
    int threads_;
    Run run_;
    bool inside_ = false;
};

void side_by_side(int wanted, Member member, void* job) {
    std::vector<std::thread> others;
    for (int w = 1; w < wanted; ++w) {
        others.emplace_back([=] { member(job, w); });
    }
    member(job, 0);
    for (std::thread& other : others) { other.join(); }
}
void only_the_caller(int, Member member, void* job) { member(job, 0); }
void one_after_the_other(int wanted, Member member, void* job) {
    for (int w = wanted - 1; w >= 0; --w) { member(job, w); }
}
void fails(int, Member, void*) { throw std::runtime_error("no threads today"); }
void fails_late(int, Member member, void* job) {
    member(job, 0);
    throw std::runtime_error("too late");
}
void numbers_that_were_not_asked_for(int wanted, Member member, void* job) {
    member(job, wanted + 7);
    member(job, -1);
    member(job, 0);
}

const AnyExecutor::Run ways[] = {side_by_side, only_the_caller, one_after_the_other,
                                 fails,        fails_late,      numbers_that_were_not_asked_for};

TEST(Executor, EveryTaskRunsOnceHoweverItRuns) {
    for (const AnyExecutor::Run& way : ways) {
        AnyExecutor executor(5, way);
        Context context(executor);
        EXPECT_EQ(context.threads(), 5);
        EXPECT_EQ(context.runs_on(), "the caller's executor");
        for (const std::int64_t count : {0, 1, 2, 50, 3000}) {
            for (const detail::Effort effort : {detail::Effort::alone, detail::Effort::awake, detail::Effort::wake}) {
                const auto lock = detail::pool_of(context).lock();
                std::vector<std::atomic<int>> runs(static_cast<std::size_t>(count));
                std::atomic<bool> bad{false};
                detail::parallel(detail::pool_of(context), count, effort, [&](std::int64_t n, int worker) {
                    runs[static_cast<std::size_t>(n)]++;
                    if (worker < 0 || worker >= 5) { bad = true; }
                });
                for (const auto& n : runs) { ASSERT_EQ(n, 1); }
                EXPECT_FALSE(bad);
            }
        }
    }
}

TEST(Executor, WhoIsInsideAlreadyRunsAlone) {
    AnyExecutor executor(4, fails);
    Context context(executor);
    executor.set_inside(true);
    EXPECT_EQ(context.threads(), 1);
    const auto caller = std::this_thread::get_id();
    const auto lock = detail::pool_of(context).lock();
    detail::parallel(detail::pool_of(context), 20, true,
                     [&](std::int64_t, int) { EXPECT_EQ(std::this_thread::get_id(), caller); });
}

TEST(Executor, ItsSizeMayChangeBetweenCalls) {
    AnyExecutor executor(2, side_by_side);
    Context context(executor);
    for (const int threads : {2, 7, 3, 0, 1}) {
        executor.set_threads(threads);
        EXPECT_EQ(context.threads(), std::max(1, threads));
        const auto lock = detail::pool_of(context).lock();
        detail::parallel(detail::pool_of(context), 100, true, [&](std::int64_t, int worker) {
            static_cast<char*>(detail::pool_of(context).scratch(worker).at_least(64))[0] = 1;
        });
    }
}

TEST(Executor, AnExceptionOfATaskComesOut) {
    for (const AnyExecutor::Run& way : ways) {
        AnyExecutor executor(3, way);
        Context context(executor);
        const auto lock = detail::pool_of(context).lock();
        EXPECT_THROW(detail::parallel(detail::pool_of(context), 50, true,
                                      [&](std::int64_t n, int) {
                                          if (n == 17) { throw std::out_of_range("task"); }
                                      }),
                     std::out_of_range);
        std::atomic<int> runs{0};
        detail::parallel(detail::pool_of(context), 50, true, [&](std::int64_t, int) { ++runs; });
        EXPECT_EQ(runs, 50);
    }
}

/// The lowest bits of sums of products depend on their order: the order is the shape's, whoever runs it.
TEST(Executor, SameBitsWhoeverRunsIt) {
    const std::int64_t batch = 2, heads = 3, queries = 130, size = 48;
    std::vector<float> q(static_cast<std::size_t>(batch * heads * queries * size));
    for (std::size_t n = 0; n < q.size(); ++n) { q[n] = static_cast<float>((n * 7919) % 1013) / 500.0F - 1.0F; }
    const View view(q.data(), {batch, heads, queries, size});
    const auto result = [&](Context& context) {
        std::vector<float> out(q.size());
        attend(context, view, view, view, MutableView(out.data(), {batch, heads, queries, size}));
        return out;
    };
    Context one(1);
    const std::vector<float> expected = result(one);
    for (const AnyExecutor::Run& way : ways) {
        AnyExecutor executor(6, way);
        Context context(executor);
        const std::vector<float> got = result(context);
        EXPECT_EQ(std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)), 0);
    }
}

#if defined(__x86_64__)
TEST(FloatMode, TasksKeepSmallNumbersWhateverTheThreadsDo) {
    constexpr unsigned flush = 0x8040;
    const unsigned before = __builtin_ia32_stmxcsr();
    volatile float small = std::numeric_limits<float>::min();
    const auto halves = [&](Context& context) {
        int kept = 0;
        const auto lock = detail::pool_of(context).lock();
        std::atomic<int> sum{0};
        detail::parallel(detail::pool_of(context), 40, true, [&](std::int64_t, int) { sum += small / 2 > 0 ? 1 : 0; });
        kept = sum;
        return kept;
    };
    __builtin_ia32_ldmxcsr(before | flush);
    EXPECT_EQ(small / 2, 0.0F);             // the mode is what the test means
    AnyExecutor executor(3, side_by_side);  // whose threads inherit it
    Context own(3), one(1), theirs(executor);
    const int kept[] = {halves(own), halves(one), halves(theirs)};
    const unsigned after = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(before);
    EXPECT_EQ(kept[0], 40);
    EXPECT_EQ(kept[1], 40);
    EXPECT_EQ(kept[2], 40);
    EXPECT_EQ(after & flush, flush);  // the caller's own mode comes back
}
#endif

}  // namespace
}  // namespace heed
