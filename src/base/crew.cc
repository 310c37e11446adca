#include "base/crew.h"

#include "base/cores.h"
#include "base/float_mode.h"

#include <algorithm>

namespace heed::detail {
namespace {

void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

void end(std::vector<std::thread>& workers, std::atomic<bool>& stop, std::atomic<std::uint32_t>& alarm) {
    stop.store(true);
    alarm.fetch_add(1);
    alarm.notify_all();
    for (std::thread& worker : workers) { worker.join(); }
}

}  // namespace

Crew::Crew(int threads) {
    // Workers spin for some 20 to 100 microseconds between jobs, so that calls in a row do not pay for a wake-up; where
    // there are more threads than cores, spinning would take the core from whoever has the work.
    most_spins_ = threads <= usable_cores() ? 4000 : 0;
    stay_awake(true);
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

Crew::~Crew() { end(workers_, stop_, alarm_); }

/// Is a small job to be shared? Not where a worker has just lost its core to somebody else's work, which costs more
/// than sharing ever gains. Where all workers sleep, they are woken for callers who come back so soon, and so often,
/// that those woken now will be awake for the next jobs.
bool Crew::shares_small_jobs(bool& wake) {
    constexpr std::chrono::microseconds soon{50};
    constexpr std::chrono::microseconds until_next_try{1000};
    constexpr int enough_calls = 8;
    if (disturbed_) {
        disturbed_ = Clock::now() < alone_until_;
        if (disturbed_) { return false; }
    }
    if (asleep_.load(std::memory_order_relaxed) < static_cast<int>(workers_.size())) { return true; }
    if (spins_.load(std::memory_order_relaxed) == 0) { return false; }
    const Clock::time_point now = Clock::now();
    close_calls_ = now - last_call_ < soon ? close_calls_ + 1 : 0;
    last_call_ = now;
    if (close_calls_ < enough_calls || now - last_woken_ < until_next_try) { return false; }
    close_calls_ = 0;
    last_woken_ = now;
    wake = true;
    return true;
}

void Crew::run(const Job& job, Effort effort, int most) {
    const bool small = effort == Effort::awake;
    bool wake = effort == Effort::wake;
    const std::int64_t count = job.count;
    const bool alone =
        workers_.empty() || most <= 1 || count <= 1 || effort == Effort::alone || (small && !shares_small_jobs(wake));
    if (alone) {
        for (std::int64_t index = 0; index < count; ++index) { job.task(job.state, index, 0); }
        return;
    }
    const int sharing = std::min({threads(), most, small ? small_job_threads : most});
    const std::int64_t at_once = tasks_at_once(count, small, sharing);
    job_ = job;
    failure_ = nullptr;
    done_.store(0, std::memory_order_relaxed);
    at_once_.store(at_once, std::memory_order_relaxed);
    wanted_.store(sharing - 1, std::memory_order_relaxed);
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
void Crew::wait_for(std::int64_t tasks, bool small) {
    constexpr int patience = 200;  // some 5 microseconds, as much as all of a small job takes
    constexpr int rest = 50;
    const int spins = std::max(patience, spins_.load(std::memory_order_relaxed));
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
        if (spin < spins) {
            relax();
        } else {
            done_.wait(done);
        }
    }
}

/// Returns how many tasks are settled by this: where one fails, those left are nobody's to run.
std::int64_t Crew::run_some(const Job& job, std::int64_t begin, std::int64_t count, int worker) {
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
std::int64_t Crew::run_rest(const Job& job, std::int64_t left, std::int64_t at_once, int worker) {
    std::int64_t settled = 0;
    while (left > 0) {
        settled += run_some(job, job.count - left, std::min(left, at_once), worker);
        left = left_.fetch_sub(at_once, std::memory_order_acquire);
    }
    return settled;
}

bool Crew::has_work(int worker, std::memory_order order) const {
    return left_.load(order) > 0 && worker <= wanted_.load(std::memory_order_relaxed);
}

void Crew::work(int worker) {
    const FloatMode plain;
    for (;;) {
        const int spins = spins_.load(std::memory_order_relaxed);
        bool work = has_work(worker, std::memory_order_relaxed);
        for (int spin = 0; !work && spin < spins && !stop_.load(std::memory_order_relaxed); ++spin) {
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

}  // namespace heed::detail
