#pragma once
#include <heed/dtype.h>

#include <string>

#include "base/refuse.h"

namespace heed {

/// The one place where a run-time float type becomes a template argument:
///     dispatch_float(q.dtype(), [&]<class T>() { run<T>(...); });
template <class Function>
decltype(auto) dispatch_float(DType dtype, Function&& function) {
    switch (dtype) {
        case DType::f32: return function.template operator()<float>();
        case DType::bf16: return function.template operator()<bf16>();
        case DType::f16: return function.template operator()<f16>();
        case DType::f64: return function.template operator()<double>();
        default: refuse("dispatch_float", "dtype", "f32, bf16, f16 or f64", std::string(name_of(dtype)));
    }
}

/// Reads element `offset` of memory of any type.
inline double read_number(DType dtype, const void* data, std::int64_t offset) {
    const auto at = [&]<class T>() { return static_cast<double>(static_cast<const T*>(data)[offset]); };
    switch (dtype) {
        case DType::f32: return at.operator()<float>();
        case DType::bf16: return at.operator()<bf16>();
        case DType::f16: return at.operator()<f16>();
        case DType::f64: return at.operator()<double>();
        case DType::i64: return at.operator()<std::int64_t>();
        case DType::i32: return at.operator()<std::int32_t>();
        case DType::i16: return at.operator()<std::int16_t>();
        case DType::i8: return at.operator()<std::int8_t>();
        case DType::u64: return at.operator()<std::uint64_t>();
        case DType::u32: return at.operator()<std::uint32_t>();
        case DType::u16: return at.operator()<std::uint16_t>();
        case DType::u8:
        case DType::boolean: return at.operator()<std::uint8_t>();
    }
    return 0;
}

/// Reads element `offset` of i32 or i64 memory.
inline std::int64_t read_integer(DType dtype, const void* data, std::int64_t offset) {
    return dtype == DType::i32 ? static_cast<const std::int32_t*>(data)[offset]
                               : static_cast<const std::int64_t*>(data)[offset];
}

/// Writes one number, rounded to nearest, to memory of any type.
inline void write_number(DType dtype, void* data, std::int64_t offset, double value) {
    switch (dtype) {
        case DType::f32: static_cast<float*>(data)[offset] = static_cast<float>(value); break;
        case DType::bf16: static_cast<bf16*>(data)[offset] = bf16(static_cast<float>(value)); break;
        case DType::f16: static_cast<f16*>(data)[offset] = f16(static_cast<float>(value)); break;
        case DType::f64: static_cast<double*>(data)[offset] = value; break;
        case DType::i64: static_cast<std::int64_t*>(data)[offset] = static_cast<std::int64_t>(value); break;
        case DType::i32: static_cast<std::int32_t*>(data)[offset] = static_cast<std::int32_t>(value); break;
        case DType::i16: static_cast<std::int16_t*>(data)[offset] = static_cast<std::int16_t>(value); break;
        case DType::i8: static_cast<std::int8_t*>(data)[offset] = static_cast<std::int8_t>(value); break;
        case DType::u64: static_cast<std::uint64_t*>(data)[offset] = static_cast<std::uint64_t>(value); break;
        case DType::u32: static_cast<std::uint32_t*>(data)[offset] = static_cast<std::uint32_t>(value); break;
        case DType::u16: static_cast<std::uint16_t*>(data)[offset] = static_cast<std::uint16_t>(value); break;
        case DType::u8:
        case DType::boolean: static_cast<std::uint8_t*>(data)[offset] = static_cast<std::uint8_t>(value); break;
    }
}

}  // namespace heed
