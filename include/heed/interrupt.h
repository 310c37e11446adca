#pragma once
/// Giving up a call that nobody waits for any more.
///
///     std::atomic<bool> stop{false};              // another thread sets it
///     const heed::Interruption while_here(stop);
///     model.forward(context, inputs);             // throws Interrupted soon after

#include <atomic>

#include <heed/error.h>

namespace heed {

/// A call that was given up. What it was to write is undefined; the context can be used again.
class HEED_API Interrupted : public Exception {
public:
    using Exception::Exception;
};

/// While one lives, heed's calls from the thread that made it end with Interrupted soon after `stop` has become true:
/// before their next block of work, some milliseconds at most on the CPU. What a GPU was given already, it finishes.
/// The latest one counts; `stop` outlives it.
class HEED_API Interruption {
public:
    explicit Interruption(const std::atomic<bool>& stop);
    ~Interruption();
    Interruption(const Interruption&) = delete;
    Interruption& operator=(const Interruption&) = delete;

private:
    const std::atomic<bool>* before_;
};

}  // namespace heed
