#pragma once
#include <atomic>
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

/// A team of threads that runs numbered tasks, the caller among them. Which thread runs which task is not
/// determined; tasks must not care.
class Pool {
public:
    explicit Pool(int threads);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int threads() const { return static_cast<int>(workers_.size()) + 1; }

    using Task = void (*)(void* state, std::int64_t index, int worker);
    /// Calls task(state, n, worker) once for every n in [0, count) and returns when all are done. Rethrows the
    /// first exception after the others have finished. One run at a time: hold the lock.
    void run(std::int64_t count, Task task, void* state);
    /// The same on the calling thread alone, for work too small to wake anybody.
    static void run_here(std::int64_t count, Task task, void* state);

    /// Held for the whole of an operation, because scratch memory is shared between calls.
    std::unique_lock<std::mutex> lock() { return std::unique_lock(mutex_); }
    /// Scratch memory of one worker (0 = the caller).
    Scratch& scratch(int worker) { return scratch_[static_cast<std::size_t>(worker)]; }
    /// Scratch memory that all workers see.
    Scratch& shared() { return shared_; }
    std::size_t scratch_bytes() const;
    void release();

private:
    void work(int worker);
    void drain(int worker);

    std::vector<std::thread> workers_;
    std::vector<Scratch> scratch_;
    Scratch shared_;
    std::mutex mutex_;
    int spins_ = 0;

    // The job. Written by the caller while `open_` is false, read by workers that are counted in `inside_`.
    Task task_ = nullptr;
    void* state_ = nullptr;
    std::int64_t count_ = 0;
    alignas(64) std::atomic<std::int64_t> next_{0};
    alignas(64) std::atomic<std::uint32_t> generation_{0};
    std::atomic<bool> open_{false};
    std::atomic<bool> stop_{false};
    alignas(64) std::atomic<int> inside_{0};
    std::mutex failure_mutex_;
    std::exception_ptr failure_;
};

/// parallel(pool, count, [&](std::int64_t index, int worker) { ... });
template <class Function>
void parallel(Pool& pool, std::int64_t count, bool worth_waking, Function&& function) {
    const auto call = [](void* state, std::int64_t index, int worker) {
        (*static_cast<std::remove_reference_t<Function>*>(state))(index, worker);
    };
    if (worth_waking) {
        pool.run(count, call, &function);
    } else {
        Pool::run_here(count, call, &function);
    }
}

}  // namespace heed::detail
