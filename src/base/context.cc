#include <heed/context.h>
#include <heed/error.h>

#include "base/pool.h"

#include <algorithm>
#include <new>
#include <string>

#include <sched.h>

namespace heed {
namespace detail {
namespace {

constexpr std::align_val_t alignment{64};

void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

int usable_cores() {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof(set), &set) == 0) { return CPU_COUNT(&set); }
    const unsigned cores = std::thread::hardware_concurrency();
    return cores == 0 ? 1 : static_cast<int>(cores);
}

void end(std::vector<std::thread>& workers, std::atomic<bool>& stop, std::atomic<std::uint32_t>& alarm) {
    stop.store(true);
    alarm.fetch_add(1);
    alarm.notify_all();
    for (std::thread& worker : workers) { worker.join(); }
}

}  // namespace

void* Scratch::at_least(std::size_t bytes) {
    if (bytes > bytes_) {
        release();
        memory_ = ::operator new(bytes, alignment);
        bytes_ = bytes;
    }
    return memory_;
}

void Scratch::release() {
    ::operator delete(memory_, alignment);
    memory_ = nullptr;
    bytes_ = 0;
}

Effort effort_for(double operations) {
    // Before 40 microseconds are over, a thread that has to be woken is of no use; before 2, not even one that is
    // awake.
    return operations > 4e6 ? Effort::wake : operations > 2e5 ? Effort::awake : Effort::alone;
}

Pool::Pool(int threads) : scratch_(static_cast<std::size_t>(threads)) {
    // Workers spin for some 20 to 100 microseconds between jobs, so that calls in a row do not pay for a wake-up; where
    // there are more threads than cores, spinning would take the core from whoever has the work.
    spins_ = threads <= usable_cores() ? 4000 : 0;
    workers_.reserve(static_cast<std::size_t>(threads - 1));
    try {
        for (int worker = 1; worker < threads; ++worker) {
            workers_.emplace_back([this, worker] { work(worker); });
        }
    } catch (...) {  // the system has no more threads to give: those that run must end before their memory does
        end(workers_, stop_, alarm_);
        throw;
    }
}

Pool::~Pool() { end(workers_, stop_, alarm_); }

std::size_t Pool::scratch_bytes() const {
    std::size_t total = shared_.bytes();
    for (const Scratch& scratch : scratch_) { total += scratch.bytes(); }
    return total;
}

void Pool::release() {
    shared_.release();
    for (Scratch& scratch : scratch_) { scratch.release(); }
}

/// Is a small job to be shared? Not where a worker has just lost its core to somebody else's work, which costs more
/// than sharing ever gains. Where all workers sleep, they are woken for callers who come back so soon, and so often,
/// that those woken now will be awake for the next jobs.
bool Pool::shares_small_jobs(bool& wake) {
    constexpr std::chrono::microseconds soon{50};
    constexpr std::chrono::microseconds until_next_try{1000};
    constexpr int enough_calls = 8;
    if (disturbed_) {
        disturbed_ = Clock::now() < alone_until_;
        if (disturbed_) { return false; }
    }
    if (asleep_.load(std::memory_order_relaxed) < static_cast<int>(workers_.size())) { return true; }
    if (spins_ == 0) { return false; }
    const Clock::time_point now = Clock::now();
    close_calls_ = now - last_call_ < soon ? close_calls_ + 1 : 0;
    last_call_ = now;
    if (close_calls_ < enough_calls || now - last_woken_ < until_next_try) { return false; }
    close_calls_ = 0;
    last_woken_ = now;
    wake = true;
    return true;
}

void Pool::run(std::int64_t count, Effort effort, Task task, void* state) {
    const bool small = effort == Effort::awake;
    bool wake = effort == Effort::wake;
    const bool alone = workers_.empty() || count <= 1 || effort == Effort::alone || (small && !shares_small_jobs(wake));
    if (alone) {
        for (std::int64_t index = 0; index < count; ++index) { task(state, index, 0); }
        return;
    }
    // Small jobs are for few, and for those several tasks at once: claiming each would cost as much as it does.
    constexpr int few = 7;
    const int wanted = small ? std::min(few, threads() - 1) : threads() - 1;
    const std::int64_t at_once = small ? std::max<std::int64_t>(1, count / (3 * (std::int64_t{wanted} + 1))) : 1;
    const Job job{task, state, count};
    job_ = job;
    failure_ = nullptr;
    done_.store(0, std::memory_order_relaxed);
    at_once_.store(at_once, std::memory_order_relaxed);
    wanted_.store(wanted, std::memory_order_relaxed);
    // The caller's first tasks are its own before anybody sees the others: it need not wait for the line to return.
    if (wake) {
        left_.store(count - at_once);
        alarm_.fetch_add(1);
        alarm_.notify_all();
    } else {
        left_.store(count - at_once, std::memory_order_release);
    }
    std::int64_t others = count - run_some(job, 0, at_once, 0);
    others -= run_rest(job, left_.fetch_sub(at_once, std::memory_order_acquire), at_once, 0);
    wait_for(others, small);
    if (failure_) { std::rethrow_exception(failure_); }
}

/// Returns when workers have done so many tasks.
void Pool::wait_for(std::int64_t tasks, bool small) {
    constexpr int patience = 200;  // some 5 microseconds, as much as all of a small job takes
    constexpr int rest = 50;
    Clock::time_point late{};
    for (int spin = 0;; ++spin) {
        const std::int64_t done = done_.load(std::memory_order_acquire);
        if (done == tasks) {
            if (small && spin > patience) {
                const Clock::time_point now = Clock::now();
                disturbed_ = true;
                alone_until_ = now + rest * (now - late);
            }
            return;
        }
        if (spin == patience) { late = Clock::now(); }
        if (spin < spins_) {
            relax();
        } else {
            done_.wait(done);
        }
    }
}

/// Returns how many tasks are settled by this: where one fails, those left are nobody's to run.
std::int64_t Pool::run_some(const Job& job, std::int64_t begin, std::int64_t count, int worker) {
    try {
        for (std::int64_t n = 0; n < count; ++n) { job.task(job.state, begin + n, worker); }
        return count;
    } catch (...) {
        const std::lock_guard guard(failure_mutex_);
        if (!failure_) { failure_ = std::current_exception(); }
        return count + std::max<std::int64_t>(0, left_.exchange(0, std::memory_order_acquire));
    }
}

/// Runs what was claimed when `left` tasks were left, and claims more until there are none.
std::int64_t Pool::run_rest(const Job& job, std::int64_t left, std::int64_t at_once, int worker) {
    std::int64_t settled = 0;
    while (left > 0) {
        settled += run_some(job, job.count - left, std::min(left, at_once), worker);
        left = left_.fetch_sub(at_once, std::memory_order_acquire);
    }
    return settled;
}

bool Pool::has_work(int worker, std::memory_order order) const {
    return left_.load(order) > 0 && worker <= wanted_.load(std::memory_order_relaxed);
}

void Pool::work(int worker) {
    for (;;) {
        bool work = has_work(worker, std::memory_order_relaxed);
        for (int spin = 0; !work && spin < spins_ && !stop_.load(std::memory_order_relaxed); ++spin) {
            relax();
            work = has_work(worker, std::memory_order_relaxed);
        }
        if (!work) {
            // Not until there is some: who was woken too late for one job is awake for the next.
            const std::uint32_t heard = alarm_.load();
            if (stop_.load()) { return; }
            if (has_work(worker, std::memory_order_seq_cst)) { continue; }
            asleep_.fetch_add(1);
            alarm_.wait(heard);
            asleep_.fetch_sub(1);
            continue;
        }
        // Meanwhile this may have become another job, which is as good. From the claim on it can neither change nor end
        // until this thread has said what it did.
        const std::int64_t at_once = at_once_.load(std::memory_order_relaxed);
        const std::int64_t left = left_.fetch_sub(at_once, std::memory_order_acquire);
        if (left <= 0) { continue; }
        const Job job = job_;
        done_.fetch_add(run_rest(job, left, at_once, worker), std::memory_order_release);
        done_.notify_one();
    }
}

}  // namespace detail

Context::Context(int threads) {
    if (threads < 0 || threads > 4096) {
        throw Error("[Context] threads: expected 0 (one per core) to 4096, got " + std::to_string(threads));
    }
    pool_ = std::make_unique<detail::Pool>(threads == 0 ? detail::usable_cores() : threads);
}

Context::~Context() = default;

int Context::threads() const { return pool_->threads(); }

std::size_t Context::workspace_bytes() const {
    const auto lock = pool_->lock();
    return pool_->scratch_bytes();
}

void Context::release_workspace() {
    const auto lock = pool_->lock();
    pool_->release();
}

}  // namespace heed
