#pragma once
#include "cpu/isa/tables.h"
#include "kernel/kernel.h"
#include "kernel/quantized_problem.h"

namespace heed::cpu {

/// What the files isa/quantized_*.cc export.
struct QuantizedKernels {
    void (*linear)(detail::Pool& pool, const QuantizedProblem& problem);
};

extern const QuantizedKernels portable_quantized;
extern const QuantizedKernels avx2_quantized;
extern const QuantizedKernels avx512bf16_quantized;
extern const QuantizedKernels neon_quantized;

/// Those that belong to the other kernels of an instruction set.
const QuantizedKernels& quantized_of(const Kernels& kernels);

/// Rows of the list of linear layers with quantised weights.
std::vector<Kernel<QuantizedProblem>> quantized_kernels();

}  // namespace heed::cpu
