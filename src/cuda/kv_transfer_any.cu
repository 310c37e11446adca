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

// ---- Whole numbers with scales -------------------------------------------------------------------------------------

struct ScaledRow {
    unsigned char* data;
    float* scales;

    __device__ ScaledRow(const KvTransferCall& call, std::int64_t head, std::int64_t token) {
        const std::int64_t row = call.rows[token];
        data = reinterpret_cast<unsigned char*>(call.data + head * call.head_bytes + row * call.row_bytes);
        scales = call.scales + head * call.head_scales + row * call.row_scales;
    }
};

/// x / scale in whole steps of -most to most. The scale of a row of tiny numbers may be 0: then so are the steps.
__device__ inline int step_of(float x, float scale, float most) {
    return scale > 0 ? static_cast<int>(fminf(fmaxf(rintf(x / scale), -most), most)) : 0;
}

/// A thread has the columns of one scale.
__global__ void __launch_bounds__(row_threads) write_scaled(const __grid_constant__ KvTransferCall call) {
    const std::int64_t groups = (call.columns + call.group - 1) / call.group;
    for_numbers({call.heads * call.tokens, groups}, [&](std::int64_t n, std::int64_t group) {
        const std::int64_t head = n / call.tokens, token = n % call.tokens;
        const std::int64_t begin = group * call.group, last = begin + call.group;
        const std::int64_t end = last < call.columns ? last : call.columns;
        const ScaledRow row(call, head, token);
        const auto at = [&](std::int64_t c) {
            const std::int64_t* stride = call.tensor.stride;
            return load_as<float>(call.tensor.dtype, call.tensor.data,
                                  head * stride[1] + token * stride[2] + c * stride[3]);
        };
        float largest = 0;
        for (std::int64_t c = begin; c < end; ++c) { largest = fmaxf(largest, fabsf(at(c))); }
        const float most = call.bits == 8 ? 127.0F : 7.0F, scale = largest / most;
        row.scales[group] = scale;
        if (call.bits == 8) {
            for (std::int64_t c = begin; c < end; ++c) {
                row.data[c] = static_cast<unsigned char>(static_cast<signed char>(step_of(at(c), scale, most)));
            }
            return;
        }
        for (std::int64_t c = begin; c < end; c += 2) {
            const int low = step_of(at(c), scale, most) + 8,
                      high = c + 1 < end ? step_of(at(c + 1), scale, most) + 8 : 8;
            row.data[c / 2] = static_cast<unsigned char>(low | high << 4);
        }
    });
}

template <class A>
__global__ void __launch_bounds__(row_threads) gather_scaled(const __grid_constant__ KvTransferCall call) {
    for_numbers({call.heads * call.tokens, call.columns}, [&](std::int64_t n, std::int64_t c) {
        const std::int64_t head = n / call.tokens, token = n % call.tokens;
        const std::int64_t* stride = call.tensor.stride;
        const ScaledRow row(call, head, token);
        int step = static_cast<signed char>(row.data[call.bits == 8 ? c : c / 2]);
        if (call.bits == 4) { step = ((c % 2 == 0 ? step : step >> 4) & 15) - 8; }
        const float x = static_cast<float>(step) * row.scales[c / call.group];
        store_as<A>(call.tensor.dtype, call.tensor.data, head * stride[1] + token * stride[2] + c * stride[3],
                    static_cast<A>(x));
    });
}

}  // namespace

void launch_kv_write(void* stream, const KvTransferCall& call, bool wide) {
    if (call.bits > 0) {
        const std::int64_t groups = (call.columns + call.group - 1) / call.group;
        write_scaled<<<blocks_for(call.heads * call.tokens * groups), row_threads, 0, stream_of(stream)>>>(call);
        return;
    }
    in_type(wide, [&](auto type) {
        write_rows<decltype(type)>
            <<<blocks_for(call.heads * call.tokens * call.columns), row_threads, 0, stream_of(stream)>>>(call);
    });
}

void launch_kv_gather(void* stream, const KvTransferCall& call, bool wide) {
    in_type(wide, [&](auto type) {
        if (call.bits > 0) {
            gather_scaled<decltype(type)>
                <<<blocks_for(call.heads * call.tokens * call.columns), row_threads, 0, stream_of(stream)>>>(call);
            return;
        }
        gather_rows<decltype(type)>
            <<<blocks_for(call.heads * call.tokens * call.columns), row_threads, 0, stream_of(stream)>>>(call);
    });
}

}  // namespace heed::cuda
