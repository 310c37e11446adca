#pragma once
/// Tensors as rows on the device, and blocks of threads that walk them.

#include "cuda/numbers.cuh"
#include "kernel/tensor_rows.h"

namespace heed::cuda {

constexpr int row_threads = 256;

__device__ inline std::int64_t row_offset(const TensorRows& x, std::int64_t n) {
    std::int64_t offset = 0;
    for (int axis = x.axes - 1; axis > 0; --axis) {
        offset += n % x.extent[axis] * x.step[axis];
        n /= x.extent[axis];
    }
    return x.axes > 0 ? offset + n * x.step[0] : offset;
}
/// Element `column` of row n, or `absent`.
template <class A>
__device__ inline A number(const TensorRows& x, std::int64_t n, std::int64_t column, A absent = 0) {
    return x.present ? load_as<A>(x.dtype, x.data, row_offset(x, n) + column * x.stride) : absent;
}
template <class A>
__device__ inline void put_number(const TensorRows& x, std::int64_t n, std::int64_t column, A value) {
    if (x.present) { store_as<A>(x.dtype, x.data, row_offset(x, n) + column * x.stride, value); }
}

/// One number from those of all threads of a block, in the same order each time; every thread gets it.
template <class A, class Join>
__device__ A block_joined(A x, const Join& join) {
    __shared__ A partial[row_threads / 32];
    for (int apart = 16; apart > 0; apart /= 2) { x = join(x, __shfl_xor_sync(~0U, x, apart)); }
    __syncthreads();
    if (threadIdx.x % 32 == 0) { partial[threadIdx.x / 32] = x; }
    __syncthreads();
    A all = partial[0];
    for (int warp = 1; warp < row_threads / 32; ++warp) { all = join(all, partial[warp]); }
    return all;
}
template <class A>
__device__ A block_sum(A x) {
    return block_joined(x, [](A a, A b) { return a + b; });
}
/// NaN counts as absent.
template <class A>
__device__ A block_largest(A x) {
    return block_joined(x, [](A a, A b) { return fmax(a, b); });
}

/// every(row, column) for all numbers of a shape.
template <class Every>
__device__ void for_numbers(const RowsShape& shape, const Every& every) {
    // Long rows: a block takes a piece of one row, so that dividing is done once for many numbers.
    constexpr std::int64_t piece = 4 * row_threads;
    if (shape.columns >= row_threads) {
        const std::int64_t of_row = (shape.columns + piece - 1) / piece, pieces = shape.rows * of_row;
        for (std::int64_t n = blockIdx.x; n < pieces; n += gridDim.x) {
            const std::int64_t row = n / of_row, begin = n % of_row * piece + threadIdx.x;
#pragma unroll
            for (std::int64_t c = begin; c < begin + piece; c += row_threads) {
                if (c < shape.columns) { every(row, c); }
            }
        }
        return;
    }
    const std::int64_t count = shape.rows * shape.columns, step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
    for (std::int64_t n = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; n < count; n += step) {
        every(n / shape.columns, n % shape.columns);
    }
}
inline unsigned blocks_for(std::int64_t numbers) {
    const std::int64_t blocks = (numbers + row_threads - 1) / row_threads;
    return static_cast<unsigned>(blocks < 1 ? 1 : blocks < 65536 ? blocks : 65536);
}

/// launch(a number of the type that is computed in).
template <class Launch>
void in_type(bool wide, const Launch& launch) {
    if (wide) {
        launch(double{});
    } else {
        launch(float{});
    }
}
inline cudaStream_t stream_of(void* stream) { return static_cast<cudaStream_t>(stream); }

}  // namespace heed::cuda
