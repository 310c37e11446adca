#pragma once
/// The row operations between the matrix products of compositions.h, vectorised for what the machine has.

#include <heed/dtype.h>

namespace heed::bench {

struct RowOperations {
    /// One more block of scores of a row: scores become exp(scores - maximum) for the first `visible` columns and 0
    /// for the rest; maximum and sum move on, and out[size], the weighted sum so far, is rescaled to match.
    void (*online_softmax)(float* scores, long visible, long columns, float& maximum, float& sum, float* out,
                           long size);
    /// scores = exp(scores - lse), 0 from `visible` on.
    void (*probabilities)(float* scores, long visible, long columns, float lse);
    /// dp = p * (dp - delta)
    void (*score_gradient)(float* dp, const float* p, long columns, float delta);
    float (*dot)(const float* a, const float* b, long size);
    void (*scale)(float* data, long size, float factor);
    /// Rounds to nearest even; NaN is not looked after.
    void (*narrow)(const float* from, bf16* to, long size);
};

const RowOperations& row_operations();

}  // namespace heed::bench
