#pragma once
/// Rows of `cuda-any`, and what their functions share.

#include "cuda/queue.h"
#include "kernel/kernel.h"

namespace heed::cuda {

constexpr const char* any_name = "cuda-any";
constexpr std::int64_t most_blocks = (std::int64_t{1} << 31) - 1;

template <class Problem>
Kernel<Problem> any_row(void (*forward)(detail::Place&, const Problem&),
                        void (*backward)(detail::Place&, const Problem&) = nullptr) {
    Kernel<Problem> row;
    row.name = any_name;
    row.what = "GPU, every type and stride";
    row.device = DeviceKind::cuda;
    row.missing = missing_hopper();  // compiled for it alone
    row.forward = forward;
    row.backward = backward;
    return row;
}

/// Scratch memory of an operation, given back when it is queued.
class Scratch {
public:
    explicit Scratch(CudaQueue& queue) : queue_(queue) {}
    ~Scratch() { queue_.finish_scratch(); }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    void* bytes(std::size_t count) { return queue_.scratch(count > 0 ? count : 1); }

private:
    CudaQueue& queue_;
};

/// One launch from a place.
template <class Problem, void (*launch)(void*, const Problem&, bool)>
void run_one(detail::Place& place, const Problem& problem) {
    CudaQueue& queue = queue_of(place);
    const OnDevice on(queue.device());
    launch(queue.stream(), problem, problem.wide());
    check_launch(any_name);
}

}  // namespace heed::cuda
