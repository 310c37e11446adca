#pragma once
/// Scaled dot-product attention with every option, forward and backward.
///
///     heed::Context context;
///     heed::attend(context, q, k, v, out, {.causal = true, .window = {.left = 255, .right = 0}});
///
/// Letters, here and everywhere in heed:
///
///     B batch entries   H query heads     G key/value heads (H is a multiple of G)
///     T queries         S keys            D size of a query and key head   E size of a value head
///
/// What is computed, in this order, for query i and key j of batch entry b and head h:
///
///     1  x = scale * (q_i . k_j)
///     2  x = softcap * tanh(x / softcap)              where a soft-cap is given
///     3  x = x + bias[b,h,i,j] - slope[h] * |p_i - p_j|
///     4  x = -infinity                                where i may not see j
///     5  w_ij = exp(x_ij) / (sum_j exp(x_ij) + exp(sink[h]))
///     6  w_ij = w_ij * keep_ij / (1 - p)              where dropout is given
///     7  out_i = sum_j w_ij v_j
///
/// Query head h uses key/value head h / (H/G). p_i and p_j are positions, see AttentionOptions.
/// A query that sees no key gets output 0 and lse -infinity (with a sink: lse = sink), and passes no gradient.
/// NaN and infinity in what a query may not see never reach its result, forward or backward.
///
/// Sums are float32 or wider whatever the inputs are. The same bits come out for any number of threads
/// and whatever else is in the batch.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <heed/context.h>
#include <heed/dtype.h>
#include <heed/error.h>
#include <heed/explain.h>
#include <heed/pattern.h>
#include <heed/view.h>

namespace heed {

/// Where query 0 stands among the keys when nothing says so explicitly.
enum class Align : std::uint8_t {
    bottom_right,  ///< p_i = i + S - T: the last query is at the last key (decoding, chunked prefill)
    top_left,      ///< p_i = i
};

/// Query i sees key j when p_i - left <= p_j <= p_i + right. -1 is unlimited; left = 0 sees no earlier key.
struct Window {
    std::int64_t left = -1;
    std::int64_t right = -1;
};

/// Dropout of attention weights. The bit of an element is a function of (seed, offset; b, h, i, j) alone:
/// keep where Philox4x32-10 with key = seed and counter (j/4, i, b*H + h, offset), word j%4, is at least
/// round(p * 2^32). Give the backward pass the same values.
///
/// Calls with the same seed and offset drop the same elements. So there is no default seed: p above 0 without a seed
/// (or a mask) is an Error, as layers that all forgot theirs would all drop alike.
struct AttentionDropout {
    double p = 0;                         ///< 0 <= p < 1
    std::optional<std::uint64_t> seed{};  ///< of the run; any number, 0 among them
    std::uint32_t offset = 0;             ///< of the layer and step: advance it for every use
    View keep{};  ///< u8 or bool, each axis of [B,H,T,S] or 1: this mask instead of the generator's
};

/// Every field may be combined with every other. All views are optional.
struct AttentionOptions {
    /// Default 1/sqrt(D).
    std::optional<double> scale{};
    /// Query i sees key j only when p_j <= p_i.
    bool causal = false;
    /// Positions p_i where query_positions is absent. Counts T and S of the padded tensors, or of the
    /// sequence where sequences are packed.
    Align align = Align::bottom_right;
    Window window{};
    /// u8 or bool, each axis of [B,H,T,S] or 1: non-zero = may attend.
    View allow{};
    /// Composable, sparse: tiles it rules out cost nothing.
    Pattern pattern{};
    /// Any float type, each axis of [B,H,T,S] or 1. -infinity hides; the lowest number does not: a row that has nothing
    /// else sees all of it alike.
    View bias{};
    /// [H] or [B,H], f32 or f64: x -= slope * |p_i - p_j|.
    View alibi_slopes{};
    /// 0: none.
    double softcap = 0;
    /// [H], f32 or f64: a logit per head that joins the denominator only.
    View sinks{};
    /// [B], i32 or i64: queries (keys) at and beyond the length are not read; those rows come out as 0.
    View query_lengths{};
    View key_lengths{};
    /// [N+1], i32 or i64, both or neither: N sequences lie end to end along T and S, and B must be 1.
    /// Sequence n is queries cu_seqlens_q[n] up to cu_seqlens_q[n+1] and likewise its keys. allow, bias,
    /// dropout and pattern then count b = n and i, j from the start of the sequence: the same
    /// numbers come out as from a padded batch of N.
    View cu_seqlens_q{};
    View cu_seqlens_k{};
    /// i32 or i64, [B,T] and [B,S], or [1,T] and [1,S]: explicit positions win over `align`.
    /// Where only one is given the other is as without.
    View query_positions{};
    View key_positions{};
    AttentionDropout dropout{};
    /// Name of the one kernel to use (see explain); empty: the best that fits, or what Context::set_kernel and the
    /// environment variable HEED_KERNEL say.
    std::string kernel{};
};

/// Where attend writes.
struct AttentionOutputs {
    MutableView out{};  ///< [B,H,T,E], in the type of q, k, v or f32
    /// On request: [B,H,T] in f32 or f64, the natural logarithm of the denominator of step 5. In bf16, asking for it
    /// may move out by less than out's own rounding.
    MutableView lse{};
};

/// out [B,H,T,E] = attention of q [B,H,T,D] over k [B,G,S,D] and v [B,G,S,E].
///
/// q, k, v share one of f32, bf16, f16, f64. Any strides; an innermost stride of 1 is fastest.
/// Throws Error and writes nothing where an argument does not fit.
///
///     heed::attend(context, q, k, v, {.out = out, .lse = lse}, {.causal = true});
HEED_API void attend(Context& context, const View& q, const View& k, const View& v, const AttentionOutputs& outputs,
                     const AttentionOptions& options = {});

/// The same where nothing but `out` is wanted.
inline void attend(Context& context, const View& q, const View& k, const View& v, const MutableView& out,
                   const AttentionOptions& options = {}) {
    attend(context, q, k, v, AttentionOutputs{.out = out}, options);
}

/// What attend_backward reads: what attend was given, what it gave, and the gradients of that.
struct AttentionBackwardInputs {
    View q{};
    View k{};
    View v{};
    View out{};
    View lse{};
    View dout{};  ///< [B,H,T,E], in the type of q or of out
    View dlse{};  ///< [B,H,T], f32 or f64, optional
};

/// Where attend_backward writes. dq, dk and dv are needed, with the shapes of q, k, v and their type or f32;
/// the rest on request.
struct AttentionGradients {
    MutableView dq{};
    MutableView dk{};
    MutableView dv{};
    MutableView dbias{};          ///< shape of bias, f32 or f64: summed over the axes that are 1
    MutableView dsinks{};         ///< [H], f32 or f64
    MutableView dalibi_slopes{};  ///< shape of alibi_slopes, f32 or f64
};

/// Gradients of sum(dout * out) + sum(dlse * lse), with the options that attend was given.
///
///     heed::attend_backward(context, {.q = q, .k = k, .v = v, .out = out, .lse = lse, .dout = dout},
///                           {.dq = dq, .dk = dk, .dv = dv}, {.causal = true});
HEED_API void attend_backward(Context& context, const AttentionBackwardInputs& inputs,
                              const AttentionGradients& gradients, const AttentionOptions& options = {});

/// Sizes of a call, for explain().
struct AttentionShape {
    std::int64_t batch = 1;        ///< B
    std::int64_t heads = 1;        ///< H
    std::int64_t kv_heads = 1;     ///< G
    std::int64_t queries = 1;      ///< T
    std::int64_t keys = 1;         ///< S
    std::int64_t head_size = 64;   ///< D
    std::int64_t value_size = 64;  ///< E
    DType dtype = DType::f32;
};

/// Which kernel would run, and for each other one why not, by sizes alone; <heed/explain.h> has the question for calls
/// of any operation. Throws what attend would throw.
HEED_API Explanation explain(const AttentionShape& shape, const AttentionOptions& options = {});

/// Names that AttentionOptions::kernel takes, best first, whether or not this machine can run them.
HEED_API std::vector<std::string> attention_kernels();

}  // namespace heed
