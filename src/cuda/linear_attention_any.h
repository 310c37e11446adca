#pragma once
/// Launches of linear_attention_any.cu, on a stream (a cudaStream_t). `wide`: numbers are computed in double, else in
/// float.

#include "cuda/linear_attention_call.h"

namespace heed::cuda {

/// Numbers of memory that a pass wants, of the type that is computed in.
std::int64_t linear_forward_numbers(const LinearAttentionCall& call);
std::int64_t linear_backward_numbers(const LinearAttentionCall& call);

void launch_linear_attention(void* stream, const LinearAttentionCall& call, void* memory, bool wide);
/// ddecay: [B,N] on the device where the gradient of decays is wanted, else null.
void launch_linear_attention_backward(void* stream, const LinearAttentionCall& call, void* memory, double* ddecay,
                                      bool wide);

}  // namespace heed::cuda
