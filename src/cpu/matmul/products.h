#pragma once
#include "cpu/isa/tables.h"
#include "kernel/kernel.h"
#include "kernel/linear_problem.h"
#include "kernel/packed_problem.h"

namespace heed::cpu {

/// What the files isa/products_*.cc export.
struct ProductKernels {
    /// Nothing of it is double.
    void (*linear)(detail::Pool& pool, const LinearProblem& problem);
    void (*packed)(detail::Pool& pool, const PackedProblem& problem);
};

extern const ProductKernels portable_products;
extern const ProductKernels avx2_products;
extern const ProductKernels avx512_products;
extern const ProductKernels avx512bf16_products;
/// Built with the one before.
extern const ProductKernels amx_products;
extern const ProductKernels neon_products;

/// Those that belong to the other kernels of an instruction set.
const ProductKernels& products_of(const Kernels& kernels);

/// Rows of the list of linear layers.
std::vector<Kernel<LinearProblem>> linear_kernels();
/// Of linear layers with packed weights.
std::vector<Kernel<PackedProblem>> packed_kernels();

}  // namespace heed::cpu
