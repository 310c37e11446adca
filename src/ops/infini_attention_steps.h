#pragma once
#include <heed/tensor.h>

#include "base/dispatch.h"
#include "base/pool.h"
#include "ops/infini_attention_checks.h"
#include "ops/row_sums.h"

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

/// A copy of gates that lie on a GPU, of which the problem reads from then on: the mix takes them as numbers. Waits.
Tensor gates_on_host(Context& context, InfiniProblem& problem);

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

}  // namespace heed
