#pragma once
#include <heed/tensor.h>

#include "kernel/attention_problem.h"

namespace heed::reference {

/// The seven steps of <heed/attention.h> for one batch entry, each as the reference computes it.
struct AttentionSteps {
    Tensor dot, scaled, capped, biased;  ///< [H,T,S]: steps 1 to 3, of hidden keys as well
    Tensor masked, weights, dropped;     ///< [H,T,S]: steps 4 to 6
    Tensor mixed;                        ///< [H,T,E]: step 7
    Tensor visible, kept;                ///< [H,T,S] of u8: by the mask, by dropout
};
/// Of a problem that is not packed.
AttentionSteps attention_steps(const AttentionProblem& problem, std::int64_t b);

/// Of two tensors of double; NaN where either has one.
double largest_difference(const Tensor& a, const Tensor& b);

}  // namespace heed::reference
