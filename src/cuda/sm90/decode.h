#pragma once
#include "cuda/attention_call.h"
#include "cuda/sm90/maps.h"

namespace heed::cuda::sm90 {

/// Memory of a step of decoding.
struct DecodeScratch {
    float* parts = nullptr;   ///< [parts(call)] results of key ranges
    int* arrivals = nullptr;  ///< one a key/value head and block of rows; 0 before and after every launch
};

/// Queries of one position: every row of a key/value head sees the same keys.
std::int64_t decode_arrivals(const AttentionCall& call);
std::int64_t decode_parts(const AttentionCall& call);
void launch_decode(void* stream, const AttentionCall& call, const DecodeScratch& scratch, LaunchMemo& memo);

}  // namespace heed::cuda::sm90
