#include "base/pool.h"

#include <heed/context.h>

#include "base/float_mode.h"
#include "base/huge_pages.h"
#include "base/interrupt.h"
#include "base/team_watch.h"
#include "base/torch_team.h"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <optional>
#include <string_view>

namespace heed::detail {
namespace {

constexpr std::align_val_t alignment{64};

/// HEED_THREADS=own keeps heed off other people's threads.
bool keeps_to_its_own() {
    const char* asked = std::getenv("HEED_THREADS");
    return asked != nullptr && std::string_view(asked) == "own";
}

/// Every thread that calls PyTorch has a team of its own.
TeamWatch& watch() {
    static thread_local TeamWatch own;
    return own;
}

/// A job that members of an executor share.
struct SharedJob {
    SharedJob(const Job& of, std::int64_t tasks, int most) : job(of), at_once(tasks), threads(most) {}

    Job job;
    std::int64_t at_once;
    int threads;
    alignas(64) std::atomic<std::int64_t> next{0};
    alignas(64) std::atomic<std::int64_t> last_done{0};  ///< when the last member that did something left, in ticks
    std::mutex failure_mutex;
    std::exception_ptr failure;
};

std::int64_t ticks() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

/// What every member does. Nothing may leave it: thrown through an OpenMP region, an exception would leave it open.
void share(SharedJob& shared, int worker) noexcept {
    const FloatMode plain;
    bool did_some = false;
    for (;;) {
        const std::int64_t begin = shared.next.fetch_add(shared.at_once, std::memory_order_relaxed);
        if (begin >= shared.job.count) { break; }
        did_some = true;
        try {
            const std::int64_t end = std::min(shared.job.count, begin + shared.at_once);
            for (std::int64_t n = begin; n < end; ++n) { shared.job.task(shared.job.state, n, worker); }
        } catch (...) {
            const std::lock_guard guard(shared.failure_mutex);
            if (!shared.failure) { shared.failure = std::current_exception(); }
            shared.next.store(shared.job.count, std::memory_order_relaxed);
        }
    }
    if (!did_some) { return; }
    const std::int64_t now = ticks();
    std::int64_t last = shared.last_done.load(std::memory_order_relaxed);
    while (last < now && !shared.last_done.compare_exchange_weak(last, now, std::memory_order_relaxed)) {}
}

}  // namespace

void* Scratch::at_least(std::size_t bytes) {
    if (bytes > bytes_) {
        release();
        memory_ = ::operator new(bytes, alignment);
        bytes_ = bytes;
        prefer_huge_pages(memory_, bytes);
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

Pool::Pool(int threads) : crew_(std::make_unique<Crew>(threads)), own_threads_(threads) { settle(); }

Pool::Pool() : own_threads_(default_threads()), quota_(cpu_quota()), automatic_(!keeps_to_its_own()) { settle(); }

Pool::Pool(Executor& executor) : given_(&executor) { settle(); }

Pool::~Pool() = default;

Pool::Staff Pool::decide() const {
    const auto clamped = [](int threads) { return std::clamp(threads, 1, most_threads); };
    if (given_ != nullptr) { return {given_, given_->inside() ? 1 : clamped(given_->concurrency())}; }
    TorchTeam* team = automatic_ ? torch_team() : nullptr;
    if (team == nullptr) { return {nullptr, own_threads_}; }
    if (team->inside()) { return {team, 1}; }
    const int threads = clamped(team->concurrency());
    if (threads == 1) { return {team, 1}; }
    // OpenMP knows nothing of quotas: with more threads than it may have CPUs, the process would be stopped for most of
    // the time. Nor does a team work in a child of its process.
    const bool over_quota = quota_ > 0 && threads > quota_;
    if (over_quota || !team->usable()) { return {nullptr, std::min(threads, own_threads_)}; }
    return {team, threads};
}

std::string Pool::runs_on() const {
    if (given_ != nullptr) { return "the caller's executor"; }
    const TorchTeam* team = automatic_ ? torch_team() : nullptr;
    if (team == nullptr) { return "heed's own threads"; }
    if (!team->usable()) { return "heed's own threads (PyTorch's OpenMP team does not outlive a fork)"; }
    if (decide().executor == nullptr) {
        return "heed's own threads (PyTorch's OpenMP team is larger than the quota of CPUs)";
    }
    return "PyTorch's OpenMP team";
}

void Pool::settle() {
    now_ = decide();
    const int most = std::max(now_.threads, now_.executor != nullptr && given_ == nullptr ? own_threads_ : 1);
    while (static_cast<int>(scratch_.size()) < most) { scratch_.emplace_back(); }
}

std::unique_lock<std::mutex> Pool::lock() {
    throw_if_stopped();  // also on a GPU, where no tasks are run here
    std::unique_lock held(mutex_);
    if (automatic_ || given_ != nullptr) { settle(); }
    return held;
}

Crew& Pool::crew() {
    if (!crew_) {
        try {
            crew_ = std::make_unique<Crew>(own_threads_);
        } catch (const std::system_error&) {  // the system has no more threads to give: the caller is enough
            crew_ = std::make_unique<Crew>(1);
        }
        crew_->stay_awake(!automatic_ || torch_team() == nullptr);
    }
    return *crew_;
}

int Pool::asleep() const { return crew_ ? crew_->asleep() : 0; }

Scratch& Pool::scratch(int worker) { return scratch_[static_cast<std::size_t>(worker)]; }

std::size_t Pool::scratch_bytes() const {
    std::size_t total = shared_.bytes();
    for (const Scratch& scratch : scratch_) { total += scratch.bytes(); }
    return total;
}

void Pool::release() {
    shared_.release();
    for (Scratch& scratch : scratch_) { scratch.release(); }
}

bool Pool::goes_alone(const Job& job, Effort effort) const {
    if (job.count <= 1 || effort == Effort::alone || now_.threads == 1) { return true; }
    return now_.executor != nullptr && effort == Effort::awake && !watch().takes_small_jobs();
}

void Pool::run(std::int64_t count, Effort effort, Task task, void* state) {
    Job job{task, state, count};
    std::optional<StoppableJob> stoppable;
    if (const std::atomic<bool>* stop = current_stop()) { job = stoppable.emplace(job, *stop).job(); }
    if (goes_alone(job, effort)) {
        const FloatMode plain;
        for (std::int64_t index = 0; index < count; ++index) { job.task(job.state, index, 0); }
        return;
    }
    const bool usable = given_ != nullptr || (now_.executor != nullptr && watch().takes_large_jobs());
    if (usable) { return run_on_executor(job, effort); }
    const FloatMode plain;
    crew().run(job, effort, std::min(now_.threads, own_threads_));
}

void Pool::run_on_executor(const Job& job, Effort effort) {
    const bool small = effort == Effort::awake;
    const int wanted = small ? std::min(now_.threads, small_job_threads) : now_.threads;
    SharedJob shared(job, tasks_at_once(job.count, small, wanted), now_.threads);
    watch().begins();
    const auto member = [](void* of, int w) {
        auto& each = *static_cast<SharedJob*>(of);
        if (w >= 0 && w < each.threads) { share(each, w); }
    };
    try {
        now_.executor->run(wanted, member, &shared);
    } catch (...) {}  // nobody is running any longer: what is left is the caller's
    share(shared, 0);
    watch().has_run(small, TeamWatch::Clock::duration(ticks() - shared.last_done.load(std::memory_order_relaxed)));
    if (shared.failure) { std::rethrow_exception(shared.failure); }
}

}  // namespace heed::detail
