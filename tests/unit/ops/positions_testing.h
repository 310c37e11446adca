#pragma once
#include <heed/error.h>
#include <heed/tensor.h>

#include "base/dispatch.h"

#include <cstdint>
#include <string>

namespace heed::testing {

/// The text of the Error that `call` throws; empty where it throws none.
template <class Call>
std::string error_of(Call&& call) {
    try {
        call();
    } catch (const Error& error) { return error.what(); }
    return "";
}

/// Numbers between -1 and 1 that look random and are exact in every float type.
inline Tensor noise(DType dtype, const Shape& shape, std::uint32_t seed = 1) {
    Tensor tensor(dtype, shape);
    std::uint32_t state = seed * 2654435761U + 1;
    for (std::int64_t n = 0; n < tensor.elements(); ++n) {
        state = state * 1664525U + 1013904223U;
        write_number(dtype, tensor.data(), n, (static_cast<int>(state >> 25) - 64) / 64.0);
    }
    return tensor;
}

inline double at(const Tensor& tensor, std::int64_t n) { return read_number(tensor.dtype(), tensor.data(), n); }

}  // namespace heed::testing
