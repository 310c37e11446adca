#pragma once
/// Launches of kv_transfer_any.cu, on a stream (a cudaStream_t).

#include "cuda/attention_call.h"

namespace heed::cuda {

/// Numbers of a tensor [1,G,T,D] and rows of a pool: token t is row rows[t] of each head.
struct KvTransferCall {
    Tensor4 tensor;
    std::int64_t heads = 0, tokens = 0, columns = 0;
    DType stored = DType::f32;
    char* data = nullptr;
    std::int64_t head_bytes = 0, row_bytes = 0;
    /// Where numbers share scales (i8: those of a row, i4: `group` columns): data holds whole numbers.
    int bits = 0;  ///< 8 or 4; 0: `stored`
    std::int64_t group = 0;
    float* scales = nullptr;
    std::int64_t head_scales = 0, row_scales = 0;
    const std::int32_t* rows = nullptr;
};
void launch_kv_write(void* stream, const KvTransferCall& call, bool wide);
void launch_kv_gather(void* stream, const KvTransferCall& call, bool wide);

}  // namespace heed::cuda
