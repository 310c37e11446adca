#include "base/interrupt.h"

#include <utility>

namespace heed {
namespace {

const std::atomic<bool>*& slot() {
    static thread_local const std::atomic<bool>* stop = nullptr;
    return stop;
}

[[noreturn]] void give_up() { throw Interrupted("the call was given up: its thread's Interruption asked for it"); }

}  // namespace

Interruption::Interruption(const std::atomic<bool>& stop) : before_(std::exchange(slot(), &stop)) {}
Interruption::~Interruption() { slot() = before_; }

const std::atomic<bool>* detail::current_stop() { return slot(); }

void detail::throw_if_stopped() {
    if (const std::atomic<bool>* stop = slot(); stop != nullptr && stop->load(std::memory_order_relaxed)) { give_up(); }
}

void detail::StoppableJob::run(void* self, std::int64_t index, int worker) {
    const auto& of = *static_cast<const StoppableJob*>(self);
    if (of.stop_.load(std::memory_order_relaxed)) { give_up(); }
    of.job_.task(of.job_.state, index, worker);
}

}  // namespace heed
