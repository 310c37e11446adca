#pragma once
/// Sums of rows that operations made of others need in between: MLA and Infini-attention.

#include <heed/view.h>

#include <vector>

namespace heed {

/// to [B,G,S,x] = from [B,H,S,x] where G is H, repeated where H is 1, and summed over h where G is 1.
struct HeadSumProblem {
    View from;
    MutableView to;

    std::int64_t summed() const { return to.extent(1) == 1 ? from.extent(1) : 1; }
};

/// out [B,S,r] = latent, with rows set to 0 that one head of MLA got no gradient from: a product 0 * NaN would let what
/// the head may not see into its weights.
struct SeenLatentsProblem {
    View latent, dkeys, dvalues;  ///< [B,S,r], [B,1,S,n], [B,1,S,v]
    MutableView out;              ///< of latent's type
};

/// out [B,X,n,C] = fa[x] a + fb[x] b by head x. b may be absent, fa and fb empty (1).
struct WeightedSumProblem {
    MutableView out;
    const std::vector<double>& fa;
    View a;
    const std::vector<double>& fb;
    View b;
};

/// sum[x] += sum over batch, rows and columns of head x of d * (a - b); b, of the type of a, may be absent.
struct HeadDotProblem {
    View d, a, b;
    std::vector<double>& sum;
};

}  // namespace heed
