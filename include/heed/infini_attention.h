#pragma once
/// Infini-attention: causal attention inside segments, and a compressive memory of all segments before.
///
///     heed::InfiniMemory memory;
///     heed::infini_attend(context, q, k, v, gates, out, memory, {.segment = 2048});   // and again with what follows
///
/// Letters as in <heed/attention.h>. A sequence is cut into segments of N tokens. sigma is elu + 1. Of each segment,
/// with the memory M [D,E] and z [D] of the segments before it, for each key/value head:
///
///     1  local  = causal softmax attention of the segment's queries over its keys and values
///     2  memory = sigma(q) M / (sigma(q) . z)                                  retrieve, before the update
///     3  M = M + sum_t sigma(k_t) (v_t - r_t)^T,  z = z + sum_t sigma(k_t)     update, when the segment is complete
///            linear: r_t = 0;  delta: r_t = sigma(k_t) M / (sigma(k_t) . z), what the memory already says
///     4  out = sigmoid(gate) memory + (1 - sigmoid(gate)) local
///
/// Query heads share the memory of their key/value head (h / (H/G)); each query head has its gate. A denominator
/// below epsilon retrieves 0: so does an empty memory, with which delta equals linear. While the memory is empty
/// (the first segment) out = local, or by option the gate applies there too.
///
/// The memory is a value of fixed size: M, z and the tokens of the segment that is not yet complete. Any split of a
/// sequence into calls, down to single tokens, gives the same result.

#include <cstddef>
#include <cstdint>

#include <heed/attention.h>
#include <heed/tensor.h>

namespace heed {

enum class MemoryUpdate : std::uint8_t { linear, delta };

enum class FirstSegment : std::uint8_t {
    local_only,  ///< out = local while the memory is empty
    gated,       ///< out = (1 - sigmoid(gate)) local
};

struct InfiniOptions {
    /// N, 1 or more; the same for all calls on one memory.
    std::int64_t segment = 2048;
    MemoryUpdate update = MemoryUpdate::linear;
    FirstSegment first_segment = FirstSegment::local_only;
    /// Denominators of step 2 below this retrieve 0. Positive.
    double epsilon = 1e-10;
    /// Queries [B,H,T,D] and keys [B,G,T,D] of steps 2 and 3, in the type of q: those without position embedding.
    /// Absent: q and k.
    View memory_q{};
    View memory_k{};
    /// Of step 1: scale, softcap, sinks, alibi_slopes, window.left and kernel. causal is implied; the rest has to be
    /// left alone.
    AttentionOptions local{};
    /// Backward only. Segments in a row, counted from the call's first, through whose memory gradients pass; between
    /// one such run and the next the memory counts as a constant. 0: all. 1: none pass.
    std::int64_t unroll = 0;
};

/// What is carried from call to call. Starts empty; the first call gives it its sizes. All parts may be saved, copied
/// (`clone`) and handed on.
struct HEED_API InfiniMemory {
    Tensor m;                   ///< M [B,G,D,E]; f64 where the inputs are, otherwise f32
    Tensor z;                   ///< [B,G,D], likewise
    std::int64_t segments = 0;  ///< folded into M and z
    std::int64_t pending = 0;   ///< tokens of the segment that is not complete, 0 to N - 1
    Tensor k;                   ///< [B,G,N,D]: keys of the pending tokens, in the first rows
    Tensor memory_k;            ///< [B,G,N,D]: likewise, where memory_k is given
    Tensor v;                   ///< [B,G,N,E]: likewise

    InfiniMemory clone() const;
    std::size_t bytes() const;
};

/// out [B,H,T,E] of q [B,H,T,D], k [B,G,T,D], v [B,G,T,E] and gates [H] (f32 or f64, before the sigmoid), the T tokens
/// that follow what `memory` has seen.
///
/// q, k, v share one of f32, bf16, f16, f64; out has that type or f32. Throws Error, and leaves out and memory as they
/// were, where an argument does not fit.
HEED_API void infini_attend(Context& context, const View& q, const View& k, const View& v, const View& gates,
                            const MutableView& out, InfiniMemory& memory, const InfiniOptions& options = {});

/// A gradient for the memory behind the call, each part optional: dm [B,G,D,E], dz [B,G,D], f32 or f64.
struct InfiniMemoryGradient {
    View dm{};
    View dz{};
};

/// What infini_attend_backward reads beside the memory: what infini_attend was given, and the gradients of what it
/// gave.
struct InfiniBackwardInputs {
    View q{};
    View k{};
    View v{};
    View gates{};
    View dout{};                   ///< [B,H,T,E], in the type of q or f32
    InfiniMemoryGradient after{};  ///< optional
};

/// Where infini_attend_backward writes. dq, dk and dv are needed, in the shapes of q, k, v and their type or f32;
/// dmemory_q and dmemory_k where memory_q and memory_k are given; the rest on request.
struct InfiniGradients {
    MutableView dq{};
    MutableView dk{};
    MutableView dv{};
    MutableView dmemory_q{};
    MutableView dmemory_k{};
    MutableView dgates{};         ///< [H], f32 or f64
    MutableView dsinks{};         ///< [H], f32 or f64
    MutableView dalibi_slopes{};  ///< shape of alibi_slopes, f32 or f64
    MutableView dm{};             ///< of the memory before the call: [B,G,D,E], f32 or f64
    MutableView dz{};             ///< [B,G,D]
};

/// Gradients of sum(dout * out), and of sum(dm * m) + sum(dz * z) of the memory behind the call. `before` is the
/// memory that the forward call was given (a clone of it, as that call moved it on); it must not hold pending tokens,
/// so training calls are whole segments, but for the last. Nothing else of the forward pass is needed: it is run again,
/// segment by segment.
///
///     heed::infini_attend_backward(context, {.q = q, .k = k, .v = v, .gates = gates, .dout = dout},
///                                  {.dq = dq, .dk = dk, .dv = dv}, before, options);
HEED_API void infini_attend_backward(Context& context, const InfiniBackwardInputs& inputs,
                                     const InfiniGradients& gradients, const InfiniMemory& before,
                                     const InfiniOptions& options = {});

}  // namespace heed
