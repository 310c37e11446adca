#pragma once
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace heed::detail {

/// Grows, never shrinks by itself; 64-byte aligned; contents are not kept when it grows.
class Scratch {
public:
    Scratch() = default;
    ~Scratch() { release(); }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    void* at_least(std::size_t bytes);
    void release();
    std::size_t bytes() const { return bytes_; }

private:
    void* memory_ = nullptr;
    std::size_t bytes_ = 0;
};

/// Whom a job is worth. Waking a thread that sleeps costs its caller some 6 microseconds, and the thread comes 20 late;
/// one that is still awake after the last job is there within a tenth of one.
enum class Effort : std::uint8_t {
    alone,  ///< the caller
    awake,  ///< whoever is awake; where such jobs follow one another closely, workers are woken and stay awake
    wake,   ///< everybody
};

/// The effort for so many operations, at some hundred in a nanosecond.
Effort effort_for(double operations);

/// A team of threads that runs numbered tasks, the caller among them. Which thread runs which task is not
/// determined; tasks must not care.
class Pool {
public:
    explicit Pool(int threads);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int threads() const { return static_cast<int>(workers_.size()) + 1; }
    /// Workers that have to be woken to do anything.
    int asleep() const { return asleep_.load(); }

    using Task = void (*)(void* state, std::int64_t index, int worker);
    /// Calls task(state, n, worker) once for every n in [0, count) and returns when all are done. Rethrows the
    /// first exception after the others have finished. One run at a time: hold the lock.
    void run(std::int64_t count, Effort effort, Task task, void* state);

    /// Held for the whole of an operation, because scratch memory is shared between calls.
    std::unique_lock<std::mutex> lock() { return std::unique_lock(mutex_); }
    /// Scratch memory of one worker (0 = the caller).
    Scratch& scratch(int worker) { return scratch_[static_cast<std::size_t>(worker)]; }
    /// Scratch memory that all workers see.
    Scratch& shared() { return shared_; }
    std::size_t scratch_bytes() const;
    void release();

private:
    using Clock = std::chrono::steady_clock;

    struct Job {
        Task task = nullptr;
        void* state = nullptr;
        std::int64_t count = 0;
    };

    bool shares_small_jobs(bool& wake);
    bool has_work(int worker, std::memory_order order) const;
    void wait_for(std::int64_t tasks, bool small);
    std::int64_t run_some(const Job& job, std::int64_t begin, std::int64_t count, int worker);
    std::int64_t run_rest(const Job& job, std::int64_t left, std::int64_t at_once, int worker);
    void work(int worker);

    std::vector<std::thread> workers_;
    std::vector<Scratch> scratch_;
    Scratch shared_;
    std::mutex mutex_;
    int spins_ = 0;
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

/// parallel(pool, count, effort, [&](std::int64_t index, int worker) { ... });
template <class Function>
void parallel(Pool& pool, std::int64_t count, Effort effort, Function&& function) {
    const auto call = [](void* state, std::int64_t index, int worker) {
        (*static_cast<std::remove_reference_t<Function>*>(state))(index, worker);
    };
    pool.run(count, effort, call, &function);
}
template <class Function>
void parallel(Pool& pool, std::int64_t count, bool worth_waking, Function&& function) {
    parallel(pool, count, worth_waking ? Effort::wake : Effort::alone, function);
}

}  // namespace heed::detail
