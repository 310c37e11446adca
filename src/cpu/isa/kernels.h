#pragma once
#include "cpu/attention/isa.h"
#include "cpu/isa/tables.h"
#include "cpu/linear_attention/isa.h"
#include "cpu/matmul/isa.h"
#include "cpu/rope/isa.h"
#include "cpu/simd/rows.h"

namespace heed::cpu {

/// Every operation for one instruction set.
template <class Isa>
constexpr Kernels kernels() {
    return {.attention = attention_functions<Isa>(),
            .rows = {.combine = combine_rows<Isa>, .dot = dot_rows<Isa>},
            .matmul = matmul<Isa>,
            .rope = rope_functions<Isa>(),
            .linear_attention = linear_attention_functions<Isa>()};
}

}  // namespace heed::cpu
