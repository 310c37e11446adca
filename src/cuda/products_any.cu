/// A few rows times a large matrix: reading the matrix is all that takes time, so every warp walks along one column of
/// it, for all rows at once. Sums are in the same order whatever the number of rows.

#include "cuda/activated.cuh"
#include "cuda/products_any.h"
#include "cuda/rows.cuh"

namespace heed::cuda {
namespace {

/// 8 numbers that lie one behind the other, 16-byte aligned.
__device__ inline void load_eight(DType dtype, const void* data, std::int64_t offset, float (&x)[8]) {
    if (dtype == DType::f32) {
        const auto* from = reinterpret_cast<const float4*>(static_cast<const float*>(data) + offset);
        const float4 a = from[0], b = from[1];
        x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
        return;
    }
    const uint4 words = *reinterpret_cast<const uint4*>(static_cast<const std::uint16_t*>(data) + offset);
    const std::uint32_t pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int n = 0; n < 4; ++n) {
        const auto low = static_cast<std::uint16_t>(pairs[n]), high = static_cast<std::uint16_t>(pairs[n] >> 16);
        x[2 * n] = dtype == DType::bf16 ? bf16_to_float(low) : f16_to_float(low);
        x[2 * n + 1] = dtype == DType::bf16 ? bf16_to_float(high) : f16_to_float(high);
    }
}

__device__ inline bool whole_words(const MatrixAddress& x, std::int64_t step) {
    const int size = x.dtype == DType::f32 ? 4 : 2;
    return reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0 && step * size % 16 == 0;
}

template <int rows>
__global__ void __launch_bounds__(row_threads) multiply_few_rows(const __grid_constant__ LinearProblem problem) {
    const MatmulProblem& p = problem.product;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * (row_threads / 32) + threadIdx.x / 32;
    if (column >= p.columns) { return; }
    const std::int64_t first = column * p.b.column_stride;
    // Depends on the matrix and on where the rows lie, not on their number.
    const bool words = whole_words(p.b, p.b.column_stride) && whole_words(p.a, p.a.row_stride);
    float sum[rows] = {};
    const std::int64_t whole = words ? p.depth / 8 * 8 : 0;
    for (std::int64_t k = lane * 8; k < whole; k += 256) {
        float b[8];
        load_eight(p.b.dtype, p.b.data, first + k, b);
#pragma unroll
        for (int r = 0; r < rows; ++r) {
            float a[8];
            load_eight(p.a.dtype, p.a.data, r * p.a.row_stride + k, a);
#pragma unroll
            for (int n = 0; n < 8; ++n) { sum[r] += a[n] * b[n]; }
        }
    }
    for (std::int64_t k = whole + lane; k < p.depth; k += 32) {
        const float b = load_as<float>(p.b.dtype, p.b.data, first + k);
#pragma unroll
        for (int r = 0; r < rows; ++r) { sum[r] += load_as<float>(p.a.dtype, p.a.data, r * p.a.row_stride + k) * b; }
    }
#pragma unroll
    for (int r = 0; r < rows; ++r) {
        for (int apart = 16; apart > 0; apart /= 2) { sum[r] += __shfl_xor_sync(~0U, sum[r], apart); }
        if (lane != 0) { continue; }
        const auto at = [&](const MatrixAddress& x, std::int64_t row) {
            return row * x.row_stride + column * x.column_stride;
        };
        float x = static_cast<float>(p.alpha) * sum[r];
        if (p.beta != 0) { x += static_cast<float>(p.beta) * load_as<float>(p.c.dtype, p.c.data, at(p.c, r)); }
        if (problem.bias.data != nullptr) {
            x += load_as<float>(problem.bias.dtype, problem.bias.data, at(problem.bias, 0));
        }
        if (problem.before.data != nullptr) {
            store_as<float>(problem.before.dtype, problem.before.data, at(problem.before, r), x);
        }
        store_as<float>(p.c.dtype, p.c.data, at(p.c, r), activated(problem.activation, x));
    }
}

template <int rows>
void launch_rows(void* stream, const LinearProblem& problem) {
    if (problem.product.rows < rows) {
        if constexpr (rows > 1) { launch_rows<rows - 1>(stream, problem); }
        return;
    }
    constexpr std::int64_t columns = row_threads / 32;
    const auto blocks = static_cast<unsigned>((problem.product.columns + columns - 1) / columns);
    multiply_few_rows<rows><<<blocks, row_threads, 0, stream_of(stream)>>>(problem);
}

}  // namespace

void launch_few_rows(void* stream, const LinearProblem& problem) {
    launch_rows<static_cast<int>(few_rows)>(stream, problem);
}

}  // namespace heed::cuda
