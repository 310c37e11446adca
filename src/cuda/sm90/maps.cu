#include "cuda/sm90/maps.h"

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <algorithm>

namespace heed::cuda::sm90 {
namespace {

bool encode_rows(CUtensorMap& map, const Tensor4& x, const Extents& extents, int box_rows) {
    // By its name at run time: a program with heed in it starts where there is no driver.
    static const auto encode = [] {
        void* function = nullptr;
        cudaDriverEntryPointQueryResult found{};
        const cudaError_t error =
            cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
        return error == cudaSuccess && found == cudaDriverEntryPointSuccess
                   ? reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function)
                   : nullptr;
    }();
    if (encode == nullptr) { return false; }
    const auto type = x.dtype == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    // An axis of one element may have any stride: one that the driver likes.
    const auto stride = [](std::int64_t elements, std::int64_t extent) {
        return extent <= 1 ? cuuint64_t{16} : static_cast<cuuint64_t>(elements * 2);
    };
    const auto at_least_one = [](std::int64_t n) { return static_cast<cuuint64_t>(n < 1 ? 1 : n); };
    const cuuint64_t sizes[4] = {at_least_one(extents.columns), at_least_one(extents.rows), at_least_one(extents.heads),
                                 at_least_one(extents.batch)};
    const cuuint64_t strides[3] = {stride(x.stride[2], extents.rows), stride(x.stride[1], extents.heads),
                                   stride(x.stride[0], extents.batch)};
    const cuuint32_t box[4] = {64, static_cast<cuuint32_t>(box_rows), 1, 1};
    const cuuint32_t steps[4] = {1, 1, 1, 1};
    return encode(&map, type, 4, x.data, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                  CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace

bool LaunchMemo::rows_map(CUtensorMap& map, const Tensor4& x, const Extents& extents, int box_rows) {
    const Key key{x.data, x.dtype, box_rows, {x.stride[0], x.stride[1], x.stride[2]}, extents};
    // Tensors of one call differ in their addresses, or in the boxes that they are read by.
    const std::uint64_t mixed =
        (reinterpret_cast<std::uintptr_t>(x.data) / 16 + static_cast<std::uint64_t>(box_rows)) * 0x9E3779B97F4A7C15U;
    Described& place = described_[mixed >> 58];
    if (!place.made || place.key != key) {
        place.made = false;
        if (!encode_rows(place.map, x, extents, box_rows)) { return false; }
        place.key = key;
        place.made = true;
    }
    map = place.map;
    return true;
}

bool LaunchMemo::allow(const void* kernel, int bytes) {
    if (std::find(allowed_.begin(), allowed_.end(), kernel) != allowed_.end()) { return true; }
    if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) != cudaSuccess) {
        return false;
    }
    allowed_.push_back(kernel);
    return true;
}

bool LaunchMemo::bias_map(CUtensorMap& map, const AttentionCall& c, int box_rows) {
    const Tensor4& x = c.bias;
    if (x.data == nullptr || c.packed || (x.dtype != DType::bf16 && x.dtype != DType::f16)) { return false; }
    const bool rows = x.stride[3] == 1 && (x.stride[2] > 0 || c.queries == 1);
    if (!rows || c.keys < 8) { return false; }  // repeated along an axis, or hardly there
    return rows_map(map, x, {c.keys, c.queries, x.stride[1] != 0 ? c.heads : 1, x.stride[0] != 0 ? c.entries : 1},
                    box_rows);
}

}  // namespace heed::cuda::sm90
