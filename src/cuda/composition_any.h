#pragma once
/// Launches of composition_any.cu, on a stream (a cudaStream_t). `wide`: numbers are computed in double, else in float.

#include "cuda/attention_call.h"
#include "kernel/clamped_gate_problem.h"
#include "kernel/log_decay_problem.h"

namespace heed::cuda {

struct Extents4 {
    std::int64_t of[4] = {1, 1, 1, 1};
    constexpr std::int64_t numbers() const { return of[0] * of[1] * of[2] * of[3]; }
};

/// to [B,G,S,x]: each number the sum over `summed` heads of `from`; where from has one head, it serves all.
struct HeadSumCall {
    Extents4 extents;  ///< of `to`
    Tensor4 from, to;
    std::int64_t summed = 1;
    bool one_head = false;
};
void launch_head_sum(void* stream, const HeadSumCall& call, bool wide);

/// out = fa[x] a + fb[x] b by head x; factors [X] in f64 or absent.
struct WeightedSumCall {
    Extents4 extents;
    Tensor4 out, a, b, fa, fb;
};
void launch_weighted_sum(void* stream, const WeightedSumCall& call, bool wide);

/// sum[x] = the sum over batch, rows and columns of head x of d * (a - b); on the device.
struct HeadDotCall {
    Extents4 extents;
    Tensor4 d, a, b;
    double* sum = nullptr;
};
void launch_head_dot(void* stream, const HeadDotCall& call);

/// out [B,S,r] = latent where the head's dkeys or dvalues of the row [B,S,n], [B,S,v] are not all 0, else 0.
struct SeenLatentsCall {
    std::int64_t batch = 0, keys = 0, latent_size = 0, key_size = 0, value_size = 0;
    Tensor4 latent, out;     ///< [B,S,r]
    Tensor4 dkeys, dvalues;  ///< [B,1,S,x]
};
void launch_seen_latents(void* stream, const SeenLatentsCall& call, bool wide);

/// One of the partial results that are merged; the last two backward only.
struct PartOnDevice {
    TensorRows out, lse, dout, dlse;
};
struct MergeCall {
    std::int64_t rows = 0, size = 0, count = 0;
    const PartOnDevice* parts = nullptr;  ///< on the device
    TensorRows out, lse;                  ///< forward
    TensorRows dout, dlse;                ///< backward
};
void launch_merge(void* stream, const MergeCall& call, bool wide);
void launch_merge_backward(void* stream, const MergeCall& call, bool wide);

void launch_log_decay(void* stream, const LogDecayProblem& problem, bool wide);
void launch_log_decay_backward(void* stream, const LogDecayProblem& problem, bool wide);

void launch_clamped_gate(void* stream, const ClampedGateProblem& problem, bool wide);
void launch_clamped_gate_backward(void* stream, const ClampedGateProblem& problem, bool wide);

/// A rotation by given tables: rows of cosine and sine [B,P,n] by token, or by positions [B,T] (i64, on the device).
struct RotateCall {
    Extents4 extents;
    Tensor4 x, out, cosine, sine, positions;
    std::int64_t pairs = 0;
    bool interleaved = false, back = false;
};
void launch_rotate(void* stream, const RotateCall& call, bool wide);

}  // namespace heed::cuda
