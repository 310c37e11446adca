#pragma once
#include "base/tasks.h"

#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace heed::detail {

/// heed's own threads. The caller is one of them and never waits for one that has claimed nothing.
class Crew {
public:
    explicit Crew(int threads);
    ~Crew();
    Crew(const Crew&) = delete;
    Crew& operator=(const Crew&) = delete;

    int threads() const { return static_cast<int>(workers_.size()) + 1; }
    /// Workers that have to be woken to do anything.
    int asleep() const { return asleep_.load(); }
    /// Whether workers wait awake for a while after a job. Not beside other threads that do: two that wait on one core
    /// share it by the millisecond.
    void stay_awake(bool stay) { spins_.store(stay ? most_spins_ : 0, std::memory_order_relaxed); }

    /// All tasks of the job, on at most `most` threads. Rethrows the first exception after the others have finished.
    void run(const Job& job, Effort effort, int most);

private:
    using Clock = std::chrono::steady_clock;

    bool shares_small_jobs(bool& wake);
    bool has_work(int worker, std::memory_order order) const;
    void wait_for(std::int64_t tasks, bool small);
    std::int64_t run_some(const Job& job, std::int64_t begin, std::int64_t count, int worker);
    std::int64_t run_rest(const Job& job, std::int64_t left, std::int64_t at_once, int worker);
    void work(int worker);

    std::vector<std::thread> workers_;
    int most_spins_ = 0;
    std::atomic<int> spins_{0};
    int close_calls_ = 0;
    bool disturbed_ = false;  ///< until alone_until_
    Clock::time_point last_call_{}, last_woken_{}, alone_until_{};

    // The job, in one line of the cache: workers look at `left_`, and what they need next comes with it. Written by the
    // caller when all of the job before is done; read by who has claimed tasks and not yet said that they are done.
    alignas(64) std::atomic<std::int64_t> left_{0};  ///< tasks that nobody has claimed; 0 and less: none
    std::atomic<std::int64_t> at_once_{1};           ///< tasks of a claim
    std::atomic<int> wanted_{0};                     ///< workers with larger numbers leave the job alone
    Job job_;
    std::atomic<bool> stop_{false};
    alignas(64) std::atomic<std::int64_t> done_{0};  ///< tasks, by workers
    alignas(64) std::atomic<int> asleep_{0};         ///< workers
    std::atomic<std::uint32_t> alarm_{0};            ///< changes when they are woken
    std::mutex failure_mutex_;
    std::exception_ptr failure_;
};

}  // namespace heed::detail
