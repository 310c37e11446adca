#pragma once
#include <heed/interrupt.h>

#include "base/tasks.h"

namespace heed::detail {

/// What the calling thread's Interruption looks at; null where it has none.
const std::atomic<bool>* current_stop();
/// Throws Interrupted where the calling thread's has been set.
void throw_if_stopped();

/// A job whose tasks look at the flag before they begin. The threads that run them have no Interruption of their own,
/// so the flag travels with the job.
class StoppableJob {
public:
    StoppableJob(const Job& job, const std::atomic<bool>& stop) : job_(job), stop_(stop) {}
    Job job() { return {run, this, job_.count}; }

private:
    static void run(void* self, std::int64_t index, int worker);

    Job job_;
    const std::atomic<bool>& stop_;
};

}  // namespace heed::detail
