#pragma once
#include "cuda/attention_call.h"
#include "cuda/queue.h"
#include "kernel/attention_problem.h"

#include <vector>

namespace heed::cuda {

/// Turns a checked problem into what kernels get. Small options that lie on the host go to the device as parameters of
/// a kernel; memory for one pass is taken from the queue's scratch in one piece.
class LoweredAttention {
public:
    LoweredAttention(CudaQueue& queue, const AttentionProblem& problem);
    ~LoweredAttention() { queue_.finish_scratch(); }
    LoweredAttention(const LoweredAttention&) = delete;
    LoweredAttention& operator=(const LoweredAttention&) = delete;

    /// So many more bytes of scratch, for the pointer that `target` is; before queue().
    void need(void** target, std::size_t bytes) { pieces_.push_back({target, bytes}); }
    /// Gets the scratch memory, sets every pointer and queues the upload.
    void queue();

    AttentionCall call;
    bool wide = false;  ///< sums in double

private:
    struct Piece {
        void** target;
        std::size_t bytes;
    };
    struct Host {
        void** target;
        std::size_t offset;
    };

    Tensor4 tensor(const View& view) const;
    /// Each axis of [B,H,T,S] or 1.
    Tensor4 pairwise(const View& view) const;
    void small(const View& view, int axes, Tensor4& target);
    /// `count` numbers of the host, which `target` points to on the device.
    template <class T>
    void upload(const T* numbers, std::size_t count, const T** target);
    void pages(const AttentionProblem& problem);

    CudaQueue& queue_;
    std::vector<unsigned char> host_;
    std::vector<Host> host_targets_;
    std::vector<Piece> pieces_;
};

}  // namespace heed::cuda
