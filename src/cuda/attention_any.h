#pragma once
#include "cuda/attention_call.h"

namespace heed::cuda {

/// Queue kernels on a stream (a cudaStream_t) and return; errors show when the stream is waited for. `wide`: sums in
/// double, else in float.
void launch_attention(void* stream, const AttentionCall& call, bool wide);
/// Rows of gradients behind the last packed sequence become 0.
void launch_clear_gradients(void* stream, const AttentionCall& call);
/// The backward pass is both, one after the other: call.delta, and where asked for row_dsink and row_dslope, are memory
/// that the first fills and the second reads.
void launch_attention_deltas(void* stream, const AttentionCall& call, bool wide);
void launch_attention_sweeps(void* stream, const AttentionCall& call, bool wide);
/// The parts of launch_attention_sweeps: dq, dk and dv; and the gradients of bias, sinks and slopes behind them.
void launch_attention_gradients(void* stream, const AttentionCall& call);
void launch_attention_sums(void* stream, const AttentionCall& call);

/// Rows of x that lie behind the last packed sequence become `value`; nothing where sequences are not packed.
void launch_clear_behind(void* stream, const AttentionCall& call, const Tensor4& x, bool of_keys, std::int64_t columns,
                         double value);

/// Writes `bytes` of host memory to the device. They travel as parameters of kernels, so the host's memory may go at
/// once and a graph that captures the stream keeps them.
void launch_upload(void* stream, void* to, const void* from, std::int64_t bytes);

}  // namespace heed::cuda
