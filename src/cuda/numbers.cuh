#pragma once
/// Elements of any type on the device: the type is a value of the call, the same for every thread of a launch, so that
/// one kernel serves all of them.

#include <heed/dtype.h>

#include <cstdint>

namespace heed::cuda {

__device__ inline float bf16_to_float(std::uint16_t bits) {
    return __uint_as_float(static_cast<std::uint32_t>(bits) << 16);
}
__device__ inline std::uint16_t float_to_bf16(float value) {
    std::uint16_t bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}
__device__ inline float f16_to_float(std::uint16_t bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}
__device__ inline std::uint16_t float_to_f16(float value) {
    std::uint16_t bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

template <class A>
__device__ inline A load_as(DType dtype, const void* data, std::int64_t offset) {
    switch (dtype) {
        case DType::f32: return static_cast<A>(static_cast<const float*>(data)[offset]);
        case DType::bf16: return static_cast<A>(bf16_to_float(static_cast<const std::uint16_t*>(data)[offset]));
        case DType::f16: return static_cast<A>(f16_to_float(static_cast<const std::uint16_t*>(data)[offset]));
        default: return static_cast<A>(static_cast<const double*>(data)[offset]);
    }
}

template <class A>
__device__ inline void store_as(DType dtype, void* data, std::int64_t offset, A value) {
    switch (dtype) {
        case DType::f32: static_cast<float*>(data)[offset] = static_cast<float>(value); break;
        case DType::bf16: static_cast<std::uint16_t*>(data)[offset] = float_to_bf16(static_cast<float>(value)); break;
        case DType::f16: static_cast<std::uint16_t*>(data)[offset] = float_to_f16(static_cast<float>(value)); break;
        default: static_cast<double*>(data)[offset] = static_cast<double>(value); break;
    }
}

__device__ inline std::int64_t load_integer(DType dtype, const void* data, std::int64_t offset) {
    return dtype == DType::i32 ? static_cast<const std::int32_t*>(data)[offset]
                               : static_cast<const std::int64_t*>(data)[offset];
}

}  // namespace heed::cuda
