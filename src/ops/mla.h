#pragma once
/// The steps of the absorbed form, for caches of latents too.

#include <heed/mla.h>

#include "ops/checks.h"

namespace heed {

/// The sizes of a call, once they are known to agree.
struct MlaSizes {
    std::int64_t batch, heads, queries, keys;   // B, H, T, S
    std::int64_t latent, plain, rotary, value;  // r, n, p, v
};

/// Sizes from q and the weights; `keys` is left 0.
MlaSizes checked_mla_sizes(Caller function, const View& q, const MlaWeights& weights);

/// absorbed [B,H,T,r+p] = [W_UK^T qn ; qr] of q [B,H,T,n+p].
void absorb_queries(Context& context, const MlaSizes& sizes, const View& q, const MlaWeights& weights,
                    const MutableView& absorbed);
/// out [B,H,T,v] = W_UV latents [B,H,T,r].
void expand_values(Context& context, const MlaSizes& sizes, const View& latents, const MlaWeights& weights,
                   const MutableView& out);

}  // namespace heed
