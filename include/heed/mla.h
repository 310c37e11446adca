#pragma once
/// Multi-head latent attention: keys and values are up-projections of one small latent vector a token, shared by all
/// heads, beside one rotary key. The cache holds r + p numbers a token, whatever the number of heads.
///
/// Letters of <heed/attention.h>, and:
///
///     r size of the latent      n size of the part of a query and key without position
///     v size of a value head    p size of the rotary part (0: none), the same key for every head
///
/// For head h, with W_UK [H,n,r], W_UV [H,v,r], query [qn ; qr] of n + p numbers, latent c and rotary key kr:
///
///     k_j   = [W_UK c_j ; kr_j]        value_j = W_UV c_j
///     out_i = attention of q_i over the k_j and value_j, with every option of attend
///
/// which is the same, because qn . (W_UK c) = (W_UK^T qn) . c, as attention over the latents themselves:
///
///     out_i = W_UV (attention of [W_UK^T qn ; qr] over keys [c_j ; kr_j] and values c_j)
///
/// The first, expanded, form costs fewer operations and has a backward pass: training and prefill. The second,
/// absorbed, form reads r + p numbers a token for all heads together: decoding. They are equal to rounding.
///
/// Inputs here are what the projections gave: c after its norm, qr and kr after their rotation. All inputs of a call
/// share one of f32, bf16, f16, f64.

#include <heed/attention.h>

namespace heed {

struct MlaWeights {
    View up_key;    ///< W_UK [H,n,r]
    View up_value;  ///< W_UV [H,v,r]
};

/// (n + p)^-1/2 * mscale^2: the scale where YaRN's factor belongs to the scores. DeepSeek's mscale is
/// 0.1 * mscale_all_dim * ln(factor) + 1. For AttentionOptions::scale, whose default here is mla_scale(n + p).
HEED_API double mla_scale(std::int64_t head_size, double mscale = 1);

/// out [B,H,T,v] from q [B,H,T,n+p], latent [B,S,r] and rotary_key [B,S,p] (absent where p is 0), in the expanded form.
/// options, lse and the types of out and lse are attend's. Takes memory for the keys and values of all heads while it
/// runs: B * H * S * (n + p + v) numbers.
HEED_API void mla_attend(Context& context, const View& q, const View& latent, const View& rotary_key,
                         const MlaWeights& weights, const AttentionOutputs& outputs,
                         const AttentionOptions& options = {});

/// The same where nothing but `out` is wanted.
inline void mla_attend(Context& context, const View& q, const View& latent, const View& rotary_key,
                       const MlaWeights& weights, const MutableView& out, const AttentionOptions& options = {}) {
    mla_attend(context, q, latent, rotary_key, weights, AttentionOutputs{.out = out}, options);
}

/// What mla_attend_backward reads: what mla_attend was given, what it gave, and the gradients of that.
struct MlaBackwardInputs {
    View q{};
    View latent{};
    View rotary_key{};
    MlaWeights weights{};
    View out{};
    View lse{};
    View dout{};
    View dlse{};  ///< optional
};

/// Where mla_attend_backward writes: dq is needed, the rest on request. Shapes of what they are gradients of, its type
/// or f32.
struct MlaGradients {
    MutableView dq;
    MutableView dlatent;
    MutableView drotary_key;
    MutableView dup_key;
    MutableView dup_value;
    MutableView dbias;  ///< this and the next two as in AttentionGradients
    MutableView dsinks;
    MutableView dalibi_slopes;
};

/// Gradients of sum(dout * out) + sum(dlse * lse). Keys and values are made again rather than kept; with their
/// gradients they take B * H * S * (n + p + v) numbers twice.
HEED_API void mla_attend_backward(Context& context, const MlaBackwardInputs& inputs, const MlaGradients& gradients,
                                  const AttentionOptions& options = {});

/// out [B,H,T,v] from q [B,H,T,n+p] and cache [B,S,r+p], latents and rotary keys side by side, in the absorbed form.
/// r comes from the weights. The cache is read where it lies: `cache.slice(2, 0, r)` and `cache.slice(2, r, r + p)` are
/// what mla_attend takes.
HEED_API void mla_attend_absorbed(Context& context, const View& q, const View& cache, const MlaWeights& weights,
                                  const AttentionOutputs& outputs, const AttentionOptions& options = {});

/// The same where nothing but `out` is wanted.
inline void mla_attend_absorbed(Context& context, const View& q, const View& cache, const MlaWeights& weights,
                                const MutableView& out, const AttentionOptions& options = {}) {
    mla_attend_absorbed(context, q, cache, weights, AttentionOutputs{.out = out}, options);
}

}  // namespace heed
