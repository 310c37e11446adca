#pragma once
/// How far a kernel may be from float64, by type: the one table.
///
/// The yardstick is the naive method (whole score matrix, softmax, product) computed in the kernel's own precision on
/// the same inputs; see naive.h. For every result, with errors as the largest absolute difference from float64,
///
///     error(kernel) <= naive_factor * error(naive) + rounding,
///
/// where `rounding` is a few units of rounding of the numbers that were added up:
///
///     rounding = magnitude * (storage_units * storage_epsilon + score_units * 2^-24 * (1 + largest score)) + tiny
///
/// `magnitude` is the largest sum of absolute values of a result's terms (sum_j w_ij |v_j| for out, and so on), so that
/// a result which is small by cancellation is held to what cancellation leaves. A weight is the exponential
/// of a score, so its relative error is the score's absolute one: hence the last factor.

#include <heed/dtype.h>

namespace heed::conformance {

struct Tolerance {
    double naive_factor;
    double storage_epsilon;  ///< half a unit in the last place of 1
    double storage_units;
    double score_units;
    double tiny;           ///< half the smallest positive number
    bool weights_rounded;  ///< kernels may round weights and their gradients to the storage type before multiplying
};

constexpr Tolerance tolerance_of(DType dtype) {
    switch (dtype) {
        case DType::bf16: return {2, 0x1p-9, 2, 4, 0, true};
        case DType::f16: return {2, 0x1p-12, 2, 4, 0x1p-25, false};
        case DType::f64: return {2, 0x1p-53, 4, 4, 0, false};
        default: return {2, 0x1p-24, 4, 4, 0, false};
    }
}

/// The reference against the naive method in double: both sum in double, in different orders.
constexpr double oracle_units = 64 * 0x1p-53;

}  // namespace heed::conformance
