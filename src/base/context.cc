#include <heed/context.h>
#include <heed/error.h>

#include "base/pool.h"

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

void end(std::vector<std::thread>& workers, std::atomic<bool>& stop, std::atomic<std::uint32_t>& generation) {
    stop.store(true);
    generation.fetch_add(1);
    generation.notify_all();
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

Pool::Pool(int threads) : scratch_(static_cast<std::size_t>(threads)) {
    // Workers spin for some 20 microseconds between jobs, so that calls in a row do not pay for a wake-up; where
    // there are more threads than cores, spinning would take the core from whoever has the work.
    spins_ = threads <= usable_cores() ? 4000 : 0;
    workers_.reserve(static_cast<std::size_t>(threads - 1));
    try {
        for (int worker = 1; worker < threads; ++worker) {
            workers_.emplace_back([this, worker] { work(worker); });
        }
    } catch (...) {  // the system has no more threads to give: those that run must end before their memory does
        end(workers_, stop_, generation_);
        throw;
    }
}

Pool::~Pool() { end(workers_, stop_, generation_); }

std::size_t Pool::scratch_bytes() const {
    std::size_t total = shared_.bytes();
    for (const Scratch& scratch : scratch_) { total += scratch.bytes(); }
    return total;
}

void Pool::release() {
    shared_.release();
    for (Scratch& scratch : scratch_) { scratch.release(); }
}

void Pool::run_here(std::int64_t count, Task task, void* state) {
    for (std::int64_t index = 0; index < count; ++index) { task(state, index, 0); }
}

void Pool::run(std::int64_t count, Task task, void* state) {
    if (workers_.empty() || count <= 1) {
        run_here(count, task, state);
        return;
    }
    task_ = task;
    state_ = state;
    count_ = count;
    failure_ = nullptr;
    next_.store(0, std::memory_order_relaxed);
    open_.store(true);
    generation_.fetch_add(1);
    generation_.notify_all();
    drain(0);
    // After this a late worker sees a closed job and touches nothing of it.
    open_.store(false);
    for (int spin = 0; inside_.load() != 0; ++spin) {
        if (spin < spins_) {
            relax();
        } else if (const int inside = inside_.load(); inside != 0) {
            inside_.wait(inside);
        }
    }
    if (failure_) { std::rethrow_exception(failure_); }
}

void Pool::drain(int worker) {
    for (;;) {
        const std::int64_t index = next_.fetch_add(1, std::memory_order_relaxed);
        if (index >= count_) { return; }
        try {
            task_(state_, index, worker);
        } catch (...) {
            const std::lock_guard guard(failure_mutex_);
            if (!failure_) { failure_ = std::current_exception(); }
            next_.store(count_, std::memory_order_relaxed);
        }
    }
}

void Pool::work(int worker) {
    std::uint32_t seen = 0;
    for (;;) {
        std::uint32_t now = generation_.load();
        for (int spin = 0; now == seen && spin < spins_; ++spin) {
            relax();
            now = generation_.load();
        }
        if (now == seen) {
            generation_.wait(seen);
            continue;
        }
        seen = now;
        if (stop_.load()) { return; }
        inside_.fetch_add(1);
        if (open_.load()) { drain(worker); }
        if (inside_.fetch_sub(1) == 1) { inside_.notify_all(); }
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
