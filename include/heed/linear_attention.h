#pragma once
/// Linear attention: a kernel phi(q).phi(k) in place of exp(q.k), so that the past fits a state of fixed size.
///
///     heed::linear_attend(context, q, k, v, out, {.causal = true});
///
/// Letters as in <heed/attention.h>; F is the size of a mapped row phi(x) (F = D unless a feature function says
/// otherwise), N the number of states: G, or as many as decays (or betas) are given. State n is fed by key/value head
/// n / (N/G) and read by query heads n * (H/N) up to (n+1) * (H/N).
///
/// What is computed, causal, for t = 0 .. T-1 with the state S [F,E] and its normaliser z [F]:
///
///     S = decay S + phi(k_t) v_t^T        z = decay z + phi(k_t)
///     out_t = scale phi(q_t)^T S / (scale phi(q_t)^T z + epsilon)        without normaliser: scale phi(q_t)^T S
///
/// With a decay per token (`log_decay`) decay is exp(log_decay_t), one number or one for each row of S and z. With the
/// delta rule the state first forgets what it would have answered to the key (no normaliser then):
///
///     R = decay S        S = R + phi(k_t) (beta_t (v_t - R^T phi(k_t)))^T
///
/// Not causal: S and z are the sums over all S keys (and the initial state), the same for every query; no decay.
/// A denominator of exactly 0 gives output 0 and passes no gradient: that is an empty past where epsilon is 0.
///
/// The same numbers come from three forms, equal up to rounding: the recurrence above (a token at a time: decoding),
/// chunks of C tokens (inside a chunk a masked product of C x C, between chunks the state: training and prefill, cost
/// T * (2 C + 4 F) * E), and the T x T matrix (the reference). NaN and infinity in a token never reach an earlier
/// row. Sums are float32 or wider; the same bits come out for any number of threads and whatever else is in the batch.

#include <cstdint>
#include <functional>
#include <span>

#include <heed/context.h>
#include <heed/dtype.h>
#include <heed/error.h>
#include <heed/view.h>

namespace heed {

/// phi, elementwise unless `function`.
enum class FeatureMap : std::uint8_t {
    elu_plus_one,  ///< x + 1 where x > 0, else exp(x)
    relu,          ///< max(x, 0)
    identity,      ///< x: for features that the caller has computed; dq and dk are then the features' gradients
    function,      ///< LinearAttentionOptions::feature_function
};

/// A feature map of the caller's, a row at a time. Called from several threads at once; what it throws comes out of the
/// call that asked (outputs are then partly written).
struct FeatureFunction {
    /// F; 0: D.
    std::int64_t size = 0;
    /// y [F] = phi(x [D])
    std::function<void(std::span<const double> x, std::span<double> y)> map{};
    /// dx [D] = (d phi / d x)^T dy [F]; needed for the backward pass only.
    std::function<void(std::span<const double> x, std::span<const double> dy, std::span<double> dx)> backward{};
};

/// What a token writes into the state.
enum class UpdateRule : std::uint8_t {
    sum,    ///< S + phi(k) v^T: linear attention, retention, gated linear attention, Mamba-2
    delta,  ///< what the state answers to phi(k) moves towards v by the share beta: DeltaNet, with decay gated DeltaNet
};

enum class LinearForm : std::uint8_t {
    automatic,  ///< recurrent for a few tokens, otherwise chunked
    recurrent,  ///< a token at a time; the backward pass is chunked all the same
    chunked,    ///< products of tiles, LinearAttentionOptions::chunk tokens at a time
    /// The T x T matrix in plain loops with double sums: the reference. With a decay per token or the delta rule
    /// (where the matrix is (I + A)^-1, see docs) its backward pass is the recurrence's.
    quadratic,
};

struct LinearAttentionOptions {
    FeatureMap feature = FeatureMap::elu_plus_one;
    FeatureFunction feature_function{};
    bool causal = true;
    bool normalise = true;
    /// Added to the denominator; 0 or more.
    double epsilon = 1e-6;
    /// Of phi(q), in the numerator and the denominator.
    double scale = 1;
    /// [G] or [H], f32 or f64, each 0 to 1: the state's factor per token (retention: 1 - 2^(-5-h), lightning attention:
    /// exp(-slope)). One state for each. Absent: 1, and a state for each key/value head. Causal only.
    View decay{};
    /// [B], i32 or i64: keys at and beyond the length are not read and the state is that after the length. Causal:
    /// queries at and beyond it come out as 0.
    View key_lengths{};
    LinearForm form = LinearForm::automatic;
    /// Tokens of a chunk, any number from 1; 0: the fastest.
    std::int64_t chunk = 0;

    UpdateRule rule = UpdateRule::sum;
    /// [B,N,T] or, a decay for each row of the state, [B,N,T,F], with N = G or H; any float type: the logarithm of the
    /// state's factor before token t is added. 0 keeps, minus infinity forgets all; above 0 the state grows. In place
    /// of `decay`. Causal only.
    View log_decay{};
    /// Delta rule only: [B,N,T] or, a share for each column of the state, [B,N,T,E], any float type; 0 to 1 in most
    /// models, but any number is taken. Absent: 1.
    View beta{};
    /// [n+1], i32 or i64: n sequences lie end to end along T and B must be 1; states are then [n,N,F,E]. Tokens
    /// behind the last sequence come out as 0. Causal only.
    View cu_seqlens{};
};

/// A state to start from: what an earlier call left. s [B,N,F,E] and z [B,N,F], f32 or f64; z with a normaliser only.
struct LinearState {
    View s{};
    View z{};
};
/// Where a state goes.
struct MutableLinearState {
    MutableView s{};
    MutableView z{};

    operator LinearState() const { return {s, z}; }
};

/// Number of states N of a call with G key/value heads: as many as decays, log decays or betas have.
HEED_API std::int64_t linear_states(const LinearAttentionOptions& options, std::int64_t kv_heads);

/// Where linear_attend writes.
struct LinearAttentionOutputs {
    MutableView out{};           ///< [B,H,T,E], in the type of q, k, v or f32
    MutableLinearState final{};  ///< on request: the state behind the last key; may be the memory of the initial one
};

/// out [B,H,T,E] = linear attention of q [B,H,T,D] over k [B,G,S,D] and v [B,G,S,E]; S = T where causal.
///
/// q, k, v share one of f32, bf16, f16, f64. `initial` is what lies before the first key (absent: nothing). A sequence
/// cut into calls, each given the state of the one before, gives the result of the whole.
HEED_API void linear_attend(Context& context, const View& q, const View& k, const View& v,
                            const LinearAttentionOutputs& outputs, const LinearAttentionOptions& options = {},
                            const LinearState& initial = {});

/// The same where nothing but `out` is wanted.
inline void linear_attend(Context& context, const View& q, const View& k, const View& v, const MutableView& out,
                          const LinearAttentionOptions& options = {}, const LinearState& initial = {}) {
    linear_attend(context, q, k, v, LinearAttentionOutputs{.out = out}, options, initial);
}

/// One token of decoding: q [B,H,D], k [B,G,D], v [B,G,E], out [B,H,E]. `state` is read and moved on in place; its
/// cost does not depend on how many tokens came before. Causal, whatever the options say of it; log_decay is [B,N] or
/// [B,N,F] here and beta [B,N] or [B,N,E].
HEED_API void linear_attend_step(Context& context, const View& q, const View& k, const View& v, const MutableView& out,
                                 const MutableLinearState& state, const LinearAttentionOptions& options = {});

/// What linear_attend_backward reads: what linear_attend was given, and the gradients of what it gave. Denominators are
/// computed again, so nothing that the forward pass computed is needed.
struct LinearAttentionBackwardInputs {
    View q{};
    View k{};
    View v{};
    LinearState initial{};
    View dout{};           ///< [B,H,T,E], in the type of q or f32
    LinearState dfinal{};  ///< of the final state, optional, and so is each of its parts
};

/// Where linear_attend_backward writes. dq, dk and dv are needed, in the shapes of q, k, v and their type or f32;
/// the rest on request.
struct LinearAttentionGradients {
    MutableView dq{};
    MutableView dk{};
    MutableView dv{};
    MutableLinearState dinitial{};  ///< of the initial state, in its shape, f32 or f64
    /// Shape of decay, f32 or f64, summed over the batch: for decays that are learned. Keeps the state before every
    /// chunk while it runs, T / C * F * E numbers a state.
    MutableView ddecay{};
    MutableView dlog_decay{};  ///< shape of log_decay, its type, f32 or f64
    MutableView dbeta{};       ///< shape of beta, its type, f32 or f64
};

/// Gradients of sum(dout * out) + sum(dfinal * final), with the options that linear_attend was given.
///
///     heed::linear_attend_backward(context, {.q = q, .k = k, .v = v, .dout = dout}, {.dq = dq, .dk = dk, .dv = dv});
HEED_API void linear_attend_backward(Context& context, const LinearAttentionBackwardInputs& inputs,
                                     const LinearAttentionGradients& gradients,
                                     const LinearAttentionOptions& options = {});

}  // namespace heed
