#pragma once
/// What the tests of the operations that layers need share.
#include <heed/context.h>

#include "unit/ops/op_testing.h"

namespace heed::testing {

inline Context& test_context() {
    static Context context(2);
    return context;
}

inline const std::vector<DType>& all_floats() {
    static const std::vector<DType> types = {DType::f32, DType::bf16, DType::f16, DType::f64};
    return types;
}

/// Rounding of results in this type, with room for float32 arithmetic before it.
inline double tolerance_of(DType dtype) {
    return dtype == DType::bf16 ? 1.0 / 128 : dtype == DType::f16 ? 1.0 / 1024 : dtype == DType::f64 ? 1e-12 : 2e-6;
}

}  // namespace heed::testing
