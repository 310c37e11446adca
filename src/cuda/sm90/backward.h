#pragma once
#include "cuda/attention_call.h"
#include "cuda/sm90/forward.h"

namespace heed::cuda::sm90 {

/// Memory that the backward pass needs beside its tensors.
struct BackwardScratch {
    /// [entries * heads, rows up to a multiple of 128]: log2(e) * lse, +infinity where there is no row, and delta.
    float* lse = nullptr;
    float* delta = nullptr;
    /// [entries * heads, tiles of 64 queries] and [entries * kv heads, tiles of 64 keys]: 1 where something is not
    /// finite.
    unsigned char* queries_flag = nullptr;
    unsigned char* keys_flag = nullptr;
    int* spoilt = nullptr;  ///< 1 where any flag is 1

    static std::int64_t padded(std::int64_t rows) { return (rows + 127) / 128 * 128; }
};

/// Queues the backward pass. False where the driver refuses to describe a tensor.
bool launch_backward(void* stream, const AttentionCall& call, const BackwardScratch& scratch, const ForwardPlan& plan);

}  // namespace heed::cuda::sm90
