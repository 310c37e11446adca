#pragma once
#include "base/dispatch.h"
#include "base/pool.h"
#include "ops/infini_attention_checks.h"

#include <vector>

/// The steps of <heed/infini_attention.h> that attention itself does not have, on the tokens of one segment. They are
/// linear attention without a mask, run by its kernels.

namespace heed {

struct MemoryView {
    View m, z;
};
struct MutableMemoryView {
    MutableView m, z;
};

/// Step 2: out [B,X,n,E] = sigma(x) M / (sigma(x) . z) for x [B,X,n,D], X heads a multiple of G.
void retrieve(Context& context, const InfiniProblem& problem, const View& x, const MemoryView& memory,
              const MutableView& out);
/// of step 2: dx, and the gradient of the memory (written, not added).
void retrieve_backward(Context& context, const InfiniProblem& problem, const View& x, const MemoryView& memory,
                       const View& dout, const MutableView& dx, const MutableMemoryView& dmemory);

/// Step 3 without r: M += sum_t sigma(k_t) v_t^T, z += sum_t sigma(k_t), in place.
void fold(Context& context, const InfiniProblem& problem, const View& k, const View& v,
          const MutableMemoryView& memory);
/// of step 3: dk and dv from the gradient of the memory behind it, which is also that before it.
void fold_backward(Context& context, const InfiniProblem& problem, const View& k, const View& v,
                   const MemoryView& dmemory, const MutableView& dk, const MutableView& dv);

/// Step 4, and other sums of two tensors: out [B,X,n,C] = fa[x] a + fb[x] b by head x. a, b: any float type; b may be
/// absent, fa and fb empty (1).
void weighted_sum(Context& context, const MutableView& out, const std::vector<double>& fa, const View& a,
                  const std::vector<double>& fb, const View& b);

/// sum[x] += sum over batch, rows and columns of head x of d * (a - b); b may be absent.
void add_dot_difference(Context& context, const View& d, const View& a, const View& b, std::vector<double>& sum);

}  // namespace heed
