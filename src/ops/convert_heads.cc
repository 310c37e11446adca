#include <heed/convert_heads.h>

#include "ops/attention_checks.h"
#include "reference/convert_heads.h"

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
    Shape shape = weight.shape();
    shape[0] = kv_heads * (rows / heads);
    check_output(function, "pooled", pooled, shape, float_types);
    check_disjoint(function, "pooled", pooled, "weight", weight);
    reference::pool_heads(weight, heads, kv_heads, pooled);
}

}  // namespace heed
