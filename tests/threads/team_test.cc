#include <gtest/gtest.h>

#include <heed/attention.h>
#include <heed/context.h>

#include "base/place.h"
#include "base/pool.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

namespace heed {
namespace {

/// The stand-in, loaded when a test first asks for it.
struct Torch {
    void (*set_num_threads)(int);
    int (*region_size)();
    void (*call_in_region)(void (*)(void*, int), void*);
    int (*inside_region)();

    static const Torch& get() {
        static const Torch torch = [] {
            void* library = dlopen(STAND_IN_TORCH, RTLD_NOW | RTLD_LOCAL);
            if (library == nullptr) { throw std::runtime_error(dlerror()); }
            Torch made{};
            find(library, "set_num_threads", made.set_num_threads);
            find(library, "region_size", made.region_size);
            find(library, "call_in_region", made.call_in_region);
            find(library, "inside_region", made.inside_region);
            return made;
        }();
        return torch;
    }

private:
    template <class Function>
    static void find(void* library, const char* name, Function*& function) {
        function = reinterpret_cast<Function*>(dlsym(library, name));
        if (function == nullptr) { throw std::runtime_error(name); }
    }
};

constexpr std::int64_t heads = 4, queries = 200, size = 64;

std::vector<float> numbers() {
    std::vector<float> x(static_cast<std::size_t>(heads * queries * size));
    for (std::size_t n = 0; n < x.size(); ++n) { x[n] = static_cast<float>((n * 7919) % 1013) / 500.0F - 1.0F; }
    return x;
}

std::vector<float> attended(Context& context) {
    static const std::vector<float> x = numbers();
    const View view(x.data(), {1, heads, queries, size});
    std::vector<float> out(x.size());
    attend(context, view, view, view, MutableView(out.data(), {1, heads, queries, size}));
    return out;
}

std::vector<float> expected() {
    Context one(1);
    return attended(one);
}

std::set<std::thread::id> who_runs(Context& context) {
    std::mutex mutex;
    std::set<std::thread::id> who;
    const auto lock = detail::pool_of(context).lock();
    detail::parallel(detail::pool_of(context), 200, true, [&](std::int64_t, int) {
        std::this_thread::sleep_for(std::chrono::microseconds(200));
        const std::lock_guard guard(mutex);
        who.insert(std::this_thread::get_id());
    });
    return who;
}

bool quota_allows(int threads) { return detail::cpu_quota() == 0 || detail::cpu_quota() >= threads; }

TEST(Team, OwnThreadsUntilTheLibraryComes) {
    Context context;
    EXPECT_EQ(context.runs_on(), "heed's own threads");
    EXPECT_EQ(attended(context), expected());
    Torch::get().set_num_threads(2);
    if (!quota_allows(2)) { GTEST_SKIP() << "one CPU"; }
    EXPECT_EQ(context.runs_on(), "PyTorch's OpenMP team");
    EXPECT_EQ(context.threads(), 2);
    EXPECT_EQ(attended(context), expected());
    EXPECT_EQ(Context(3).runs_on(), "heed's own threads");  // asked for
    EXPECT_EQ(Context(3).threads(), 3);
}

TEST(Team, IsThatOfTheLibrary) {
    if (!quota_allows(2)) { GTEST_SKIP() << "one CPU"; }
    const Torch& torch = Torch::get();
    torch.set_num_threads(2);
    std::mutex mutex;
    std::set<std::thread::id> theirs;
    auto note = [&] {
        const std::lock_guard guard(mutex);
        theirs.insert(std::this_thread::get_id());
    };
    torch.call_in_region([](void* function, int) { (*static_cast<decltype(note)*>(function))(); }, &note);
    EXPECT_EQ(theirs.size(), 2U);
    Context context;
    for (const std::thread::id& id : who_runs(context)) { EXPECT_TRUE(theirs.contains(id)); }
}

TEST(Team, FollowsItsSize) {
    const Torch& torch = Torch::get();
    Context context;
    for (const int threads : {1, 2, 3, 5, 2}) {
        torch.set_num_threads(threads);
        EXPECT_EQ(context.threads(), quota_allows(threads) ? threads : std::min(threads, detail::usable_cores()));
        EXPECT_EQ(attended(context), expected());
        EXPECT_EQ(torch.region_size(), threads);
    }
    torch.set_num_threads(1);
    EXPECT_EQ(who_runs(context), std::set<std::thread::id>{std::this_thread::get_id()});
    torch.set_num_threads(2);
}

TEST(Team, AboveTheQuotaOwnThreads) {
    const int quota = detail::cpu_quota();
    if (quota == 0) { GTEST_SKIP() << "no quota here"; }
    Torch::get().set_num_threads(quota + 1);
    Context context;
    EXPECT_EQ(context.runs_on(), "heed's own threads (PyTorch's OpenMP team is larger than the quota of CPUs)");
    EXPECT_LE(context.threads(), quota);
    EXPECT_EQ(attended(context), expected());
    Torch::get().set_num_threads(2);
}

TEST(Team, InsideARegionAlone) {
    const Torch& torch = Torch::get();
    torch.set_num_threads(2);
    Context context;
    const std::vector<float> right = expected();
    struct State {
        Context& context;
        const std::vector<float>& right;
        std::atomic<int> good{0}, alone{0};
    } state{context, right};
    torch.call_in_region(
        [](void* of, int) {
            auto& s = *static_cast<State*>(of);
            s.alone += s.context.threads() == 1 ? 1 : 0;
            s.good += attended(s.context) == s.right ? 1 : 0;
        },
        &state);
    EXPECT_EQ(state.good, 2);
    EXPECT_EQ(state.alone, 2);
}

TEST(Team, ATaskThatThrowsLeavesTheTeamWhole) {
    const Torch& torch = Torch::get();
    torch.set_num_threads(2);
    Context context;
    for (int round = 0; round < 20; ++round) {
        {
            const auto lock = detail::pool_of(context).lock();
            EXPECT_THROW(detail::parallel(detail::pool_of(context), 30, true,
                                          [&](std::int64_t n, int) {
                                              if (n == round) { throw std::runtime_error("task"); }
                                          }),
                         std::runtime_error);
        }
        EXPECT_EQ(torch.inside_region(), 0);
        EXPECT_EQ(torch.region_size(), 2);
    }
    EXPECT_EQ(attended(context), expected());
}

TEST(Team, CallersFromSeveralThreads) {
    Torch::get().set_num_threads(2);
    Context shared;
    const std::vector<float> right = expected();
    std::atomic<int> wrong{0};
    std::vector<std::thread> callers;
    for (int n = 0; n < 4; ++n) {
        callers.emplace_back([&, n] {
            Context own;
            Torch::get().set_num_threads(1 + n % 2);
            for (int round = 0; round < 10; ++round) {
                wrong += attended(round % 2 == 0 ? shared : own) == right ? 0 : 1;
            }
        });
    }
    for (std::thread& caller : callers) { caller.join(); }
    EXPECT_EQ(wrong, 0);
}

/// libgomp hangs in the first region of a child whose parent had one.
TEST(Team, AForkedChildComputes) {
    const Torch& torch = Torch::get();
    torch.set_num_threads(2);
    EXPECT_EQ(torch.region_size(), 2);
    Context context;
    const std::vector<float> right = expected();
    EXPECT_EQ(attended(context), right);
    const pid_t child = fork();
    if (child == 0) {
        alarm(20);
        bool good = true;
        {
            Context fresh;
            good = attended(fresh) == right && fresh.runs_on().starts_with("heed's own threads (PyTorch");
        }
        std::_Exit(good ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0);
    EXPECT_EQ(attended(context), right);
}

TEST(Team, ManySmallJobs) {
    Torch::get().set_num_threads(2);
    Context context;
    std::int64_t sum = 0;
    for (int round = 0; round < 3000; ++round) {
        std::atomic<std::int64_t> part{0};
        const auto lock = detail::pool_of(context).lock();
        detail::parallel(detail::pool_of(context), 2 + round % 29, detail::Effort::awake,
                         [&](std::int64_t n, int) { part += n + 1; });
        const std::int64_t count = 2 + round % 29;
        ASSERT_EQ(part, count * (count + 1) / 2);
        sum += part;
    }
    EXPECT_GT(sum, 0);
}

}  // namespace
}  // namespace heed
