#pragma once
#include "base/cores.h"
#include "base/crew.h"
#include "base/tasks.h"

#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <type_traits>

namespace heed {
class Executor;
}

namespace heed::detail {

constexpr int most_threads = 4096;

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

class TorchTeam;

/// Runs numbered tasks on threads: heed's own, PyTorch's OpenMP team, or an executor that was given. Which thread runs
/// which task is not determined; tasks must not care.
class Pool {
public:
    /// Threads of its own.
    explicit Pool(int threads);
    /// PyTorch's team where there is one, otherwise threads of its own, which it starts when they are first needed.
    Pool();
    explicit Pool(Executor& executor);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    /// Threads of the operation that holds the lock; workers have numbers below that.
    int threads() const { return now_.threads; }
    /// Threads that an operation would have now that begins on the calling thread.
    int threads_of_next() const { return decide().threads; }
    /// In words.
    std::string runs_on() const;
    /// Own workers that have to be woken to do anything.
    int asleep() const;

    using Task = detail::Task;
    /// Calls task(state, n, worker) once for every n in [0, count) and returns when all are done. Rethrows the
    /// first exception after the others have finished. One run at a time: hold the lock.
    void run(std::int64_t count, Effort effort, Task task, void* state);

    /// Held for the whole of an operation, because scratch memory is shared between calls.
    std::unique_lock<std::mutex> lock();
    /// Scratch memory of one worker (0 = the caller).
    Scratch& scratch(int worker);
    /// Scratch memory that all workers see.
    Scratch& shared() { return shared_; }
    std::size_t scratch_bytes() const;
    void release();

private:
    /// On whom an operation runs.
    struct Staff {
        Executor* executor = nullptr;  ///< null: the crew
        int threads = 1;
    };
    Staff decide() const;
    void settle();
    Crew& crew();
    bool goes_alone(const Job& job, Effort effort) const;
    void run_on_executor(const Job& job, Effort effort);

    std::unique_ptr<Crew> crew_;  ///< null until it is needed
    int own_threads_ = 1;
    int quota_ = 0;
    bool automatic_ = false;
    Executor* given_ = nullptr;
    Staff now_;

    std::deque<Scratch> scratch_;
    Scratch shared_;
    std::mutex mutex_;
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
