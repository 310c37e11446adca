/// Rows of a cache's pages to and from tensors.

#include "cuda/kv_transfer_any.h"
#include "cuda/rows.cuh"

namespace heed::cuda {
namespace {

/// each(where in the tensor, memory of the row, column) for all numbers.
template <class Each>
__device__ void for_rows_of_pool(const KvTransferCall& call, const Each& each) {
    for_numbers({call.heads * call.tokens, call.columns}, [&](std::int64_t n, std::int64_t column) {
        const std::int64_t head = n / call.tokens, token = n % call.tokens;
        const std::int64_t* stride = call.tensor.stride;
        char* row = call.data + head * call.head_bytes + call.rows[token] * call.row_bytes;
        each(head * stride[1] + token * stride[2] + column * stride[3], row, column);
    });
}

template <class A>
__global__ void __launch_bounds__(row_threads) write_rows(const __grid_constant__ KvTransferCall call) {
    for_rows_of_pool(call, [&](std::int64_t at, char* row, std::int64_t column) {
        store_as<A>(call.stored, row, column, load_as<A>(call.tensor.dtype, call.tensor.data, at));
    });
}
template <class A>
__global__ void __launch_bounds__(row_threads) gather_rows(const __grid_constant__ KvTransferCall call) {
    for_rows_of_pool(call, [&](std::int64_t at, const char* row, std::int64_t column) {
        store_as<A>(call.tensor.dtype, call.tensor.data, at, load_as<A>(call.stored, row, column));
    });
}

}  // namespace

void launch_kv_write(void* stream, const KvTransferCall& call, bool wide) {
    in_type(wide, [&](auto type) {
        write_rows<decltype(type)>
            <<<blocks_for(call.heads * call.tokens * call.columns), row_threads, 0, stream_of(stream)>>>(call);
    });
}

void launch_kv_gather(void* stream, const KvTransferCall& call, bool wide) {
    in_type(wide, [&](auto type) {
        gather_rows<decltype(type)>
            <<<blocks_for(call.heads * call.tokens * call.columns), row_threads, 0, stream_of(stream)>>>(call);
    });
}

}  // namespace heed::cuda
