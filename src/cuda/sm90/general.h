#pragma once
#include "cuda/attention_call.h"
#include "cuda/sm90/backward.h"
#include "cuda/sm90/forward.h"

namespace heed::cuda::sm90 {

/// What is true of squares of 64 queries and 64 keys, for options that look at single pairs: who may be left out, and
/// who needs no look at single pairs.
struct Squares {
    static constexpr int side = 64;
    static constexpr unsigned char some_seen = 1, some_hidden = 2;
    unsigned char* flags = nullptr;  ///< [entries or 1, heads or 1, query_squares, key_squares]; null: all are seen
    std::int64_t query_squares = 0, key_squares = 0;
    std::int64_t entries = 1, heads = 1;

    std::int64_t bytes() const { return entries * heads * query_squares * key_squares; }
};

/// The squares that a call needs: none where bands say everything.
Squares squares_of(const AttentionCall& call);

/// Forward and backward with every option: bias, allow, ALiBi, soft-cap, sinks, dropout, patterns, positions. What the
/// tensors are is as for launch_forward and launch_backward. The memory of `squares` is filled here.
bool launch_general_forward(void* stream, const AttentionCall& call, const ForwardPlan& plan, const Squares& squares);
bool launch_general_backward(void* stream, const AttentionCall& call, const BackwardScratch& scratch,
                             const ForwardPlan& plan, const Squares& squares);
/// Is the gradient of the bias among what launch_general_backward computes? Not where it is a sum over queries or keys.
bool takes_bias_gradient(const AttentionCall& call);
void launch_squares(void* stream, const AttentionCall& call, const Squares& squares);

}  // namespace heed::cuda::sm90
