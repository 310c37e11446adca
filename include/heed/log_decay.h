#pragma once
/// The gate by which linear attention forgets, token by token, as a model learns it.
///
///     log_decay = -exp(rate_n) softplus(x)        softplus(x) = log(1 + exp(x))
///
/// is never above 0, so that exp(log_decay), the state's factor, lies between 0 and 1: Mamba-2, gated DeltaNet
/// (Qwen3-Next), Kimi Linear; with rate = -log 16 and -x for x gated linear attention's log(sigmoid(x)) / 16.
/// x is what a projection of the token gives, its bias included.
///
/// Any float types, mixed as you like, of any strides; arithmetic is double.

#include <heed/context.h>
#include <heed/error.h>
#include <heed/view.h>

namespace heed {

/// out [...,M] of x [...,M] and rate [N], where N divides M: the M/N columns of state n have rate n. out may be x
/// itself. LinearAttentionOptions::log_decay takes out [B,T,N] seen as [B,N,T], or [B,T,N F] as [B,N,T,F].
HEED_API void log_decay(Context& context, const View& x, const View& rate, const MutableView& out);

/// dx = dout d out / d x; drate is the sum over all rows and the columns of each state. Each may be left out; dx may be
/// dout or x itself. The order of the sum depends on the shapes alone.
HEED_API void log_decay_backward(Context& context, const View& x, const View& rate, const View& dout,
                                 const MutableView& dx, const MutableView& drate);

}  // namespace heed
