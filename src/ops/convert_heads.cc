#include <heed/convert_heads.h>

#include "base/dispatch.h"
#include "ops/attention_checks.h"

namespace heed {

void pool_heads(const View& weight, std::int64_t heads, std::int64_t kv_heads, const MutableView& pooled) {
    constexpr const char* function = "pool_heads";
    if (!weight) { refuse(function, "weight", "a tensor [H*d, in] or [H*d]", "none"); }
    if (weight.rank() != 1 && weight.rank() != 2) {
        refuse(function, "weight", "[H*d, in] or [H*d]", to_string(weight.shape()));
    }
    check_dtype(function, "weight", weight, float_types);
    const std::int64_t rows = weight.extent(0);
    if (heads < 1 || rows % heads != 0) {
        refuse(function, "heads", "a divisor of the " + std::to_string(rows) + " rows of weight",
               std::to_string(heads));
    }
    if (kv_heads < 1 || heads % kv_heads != 0) {
        refuse(function, "kv_heads", "a divisor of " + std::to_string(heads) + " heads", std::to_string(kv_heads));
    }
    const std::int64_t group = heads / kv_heads;
    const std::int64_t size = rows / heads;
    Shape shape = weight.shape();
    shape[0] = kv_heads * size;
    check_output(function, "pooled", pooled, shape, float_types);
    check_apart(function, "pooled", pooled, "weight", weight);

    const bool matrix = weight.rank() == 2;
    for (std::int64_t g = 0; g < kv_heads; ++g) {
        for (std::int64_t d = 0; d < size; ++d) {
            for (std::int64_t column = 0; column < (matrix ? weight.extent(1) : 1); ++column) {
                double sum = 0;
                for (std::int64_t h = g * group; h < (g + 1) * group; ++h) {
                    sum += read_number(weight.dtype(), weight.data(),
                                       (h * size + d) * weight.stride(0) + (matrix ? column * weight.stride(1) : 0));
                }
                write_number(pooled.dtype(), pooled.data(),
                             (g * size + d) * pooled.stride(0) + (matrix ? column * pooled.stride(1) : 0),
                             sum / static_cast<double>(group));
            }
        }
    }
}

}  // namespace heed
