#pragma once
#include "cuda/attention_call.h"
#include "cuda/sm90/maps.h"

namespace heed::cuda::sm90 {

/// What the kernels for Hopper take of a call: bf16 or f16, head size 64 or 128, rows of 16-byte multiples.
struct ForwardPlan {
    int multiprocessors = 132;
    int* counter = nullptr;  ///< two ints on the device, 0 before and after every launch
    LaunchMemo* memo = nullptr;
};

/// Queues the forward pass. False where the driver refuses to describe a tensor.
bool launch_forward(void* stream, const AttentionCall& call, const ForwardPlan& plan);

}  // namespace heed::cuda::sm90
