#pragma once
#include "cpu/layers/activation.h"
#include "cpu/layers/cross_entropy.h"
#include "cpu/layers/dropout.h"
#include "cpu/layers/elementwise.h"
#include "cpu/layers/norm.h"
#include "cpu/layers/tables.h"

namespace heed::cpu {

template <class Isa>
constexpr LayerKernels layer_kernels() {
    return {.norm = norm_rows<Isa>,
            .norm_backward = norm_backward_rows<Isa>,
            .activation = activation_rows<Isa>,
            .activation_backward = activation_backward_rows<Isa>,
            .elementwise = elementwise_row<Isa>,
            .sum_leading = sum_leading_row<Isa>,
            .sum_of_squares = sum_of_squares_line<Isa>,
            .adam = adam_line<Isa>,
            .cross_entropy = cross_entropy_rows<Isa>,
            .dropout = dropout_rows<Isa>};
}

}  // namespace heed::cpu
