#pragma once
#include <heed/tensor.h>

namespace heed::reference {

/// Is every number of x [B,S,r] finite?
bool all_finite(const View& x);

/// The latents [B,S,r] with those set to 0 that head h got no gradient from: a product 0 * NaN would let what the head
/// may not see into its weights.
Tensor seen_latents(const View& latent, const View& dkeys, const View& dvalues, std::int64_t h);

}  // namespace heed::reference
