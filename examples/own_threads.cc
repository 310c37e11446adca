// heed on a pool of std::threads that the program has anyway: no other threads are started.
#include <heed/attention.h>
#include <heed/context.h>

#include <condition_variable>
#include <cstdio>
#include <functional>
#include <future>
#include <mutex>
#include <queue>
#include <thread>
#include <vector>

/// A queue of functions and threads that take from it: what many programs have.
class ThreadPool {
public:
    explicit ThreadPool(int threads) {
        for (int n = 0; n < threads; ++n) {
            threads_.emplace_back([this] { work(); });
        }
    }
    ~ThreadPool() {
        {
            const std::lock_guard guard(mutex_);
            done_ = true;
        }
        news_.notify_all();
        for (std::thread& thread : threads_) { thread.join(); }
    }
    int size() const { return static_cast<int>(threads_.size()); }
    void post(std::function<void()> function) {
        {
            const std::lock_guard guard(mutex_);
            waiting_.push(std::move(function));
        }
        news_.notify_one();
    }
    /// Is the calling thread one of a pool's?
    static bool inside() { return inside_; }

private:
    void work() {
        inside_ = true;
        for (std::unique_lock lock(mutex_);;) {
            news_.wait(lock, [this] { return done_ || !waiting_.empty(); });
            if (waiting_.empty()) { return; }
            const std::function<void()> function = std::move(waiting_.front());
            waiting_.pop();
            lock.unlock();
            function();
            lock.lock();
        }
    }

    std::vector<std::thread> threads_;
    std::queue<std::function<void()>> waiting_;
    std::mutex mutex_;
    std::condition_variable news_;
    bool done_ = false;
    static thread_local bool inside_;
};
thread_local bool ThreadPool::inside_ = false;

/// What heed asks for: three functions.
class PoolExecutor final : public heed::Executor {
public:
    explicit PoolExecutor(ThreadPool& pool) : pool_(pool) {}
    int concurrency() override { return pool_.size() + 1; }  // and the caller
    bool inside() override { return ThreadPool::inside(); }
    void run(int wanted, void (*member)(void* job, int w), void* job) override {
        std::mutex mutex;
        std::condition_variable all_left;
        int left = wanted - 1;
        for (int w = 1; w < wanted; ++w) {
            pool_.post([&, w] {
                member(job, w);
                const std::lock_guard guard(mutex);
                if (--left == 0) { all_left.notify_one(); }
            });
        }
        member(job, 0);
        std::unique_lock lock(mutex);
        all_left.wait(lock, [&] { return left == 0; });
    }

private:
    ThreadPool& pool_;
};

int main() {
    constexpr std::int64_t heads = 8, tokens = 256, size = 64;
    std::vector<float> x(heads * tokens * size);
    for (std::size_t n = 0; n < x.size(); ++n) { x[n] = static_cast<float>(n * 37 % 101) / 50 - 1; }
    const heed::View view(x.data(), {1, heads, tokens, size});
    const auto attend = [&](heed::Context& context) {
        std::vector<float> out(x.size());
        heed::attend(context, view, view, view, heed::MutableView(out.data(), {1, heads, tokens, size}),
                     {.causal = true});
        return out;
    };

    ThreadPool pool(3);
    PoolExecutor executor(pool);
    heed::Context theirs(executor);
    heed::Context one(1);
    const bool same = attend(theirs) == attend(one);
    std::printf("%s, %d threads: %s as with one thread\n", theirs.runs_on().c_str(), theirs.threads(),
                same ? "the same bits" : "other numbers");

    // On a thread of the pool itself heed runs alone: waiting for the others could be waiting for itself.
    std::promise<bool> inside;
    pool.post([&] { inside.set_value(theirs.threads() == 1 && attend(theirs) == attend(one)); });
    const bool same_inside = inside.get_future().get();
    std::printf("inside the pool, alone: %s\n", same_inside ? "the same bits" : "other numbers");
    return same && same_inside ? 0 : 1;
}
