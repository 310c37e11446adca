#pragma once
#include <heed/activation.h>

#include "kernel/matmul_problem.h"

namespace heed {

/// A product of two matrices with what a linear layer does to its result: c = activation(alpha a b + beta c + bias).
struct LinearProblem {
    MatmulProblem product;  ///< no outer nor summed axes
    MatrixAddress bias{};   ///< one row of N; null: none
    Activation activation = Activation::none;
    MatrixAddress before{};  ///< what the activation was given, as c; null: not wanted

    bool wide() const {
        return product.a.dtype == DType::f64 || product.b.dtype == DType::f64 || product.c.dtype == DType::f64 ||
               bias.dtype == DType::f64 || before.dtype == DType::f64;
    }
};

}  // namespace heed
