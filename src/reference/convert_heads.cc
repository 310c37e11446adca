#include "reference/convert_heads.h"

#include "base/dispatch.h"

namespace heed::reference {

void pool_heads(const View& weight, std::int64_t heads, std::int64_t kv_heads, const MutableView& pooled) {
    const bool matrix = weight.rank() == 2;
    const std::int64_t columns = matrix ? weight.extent(1) : 1;
    const std::int64_t group = heads / kv_heads, size = weight.extent(0) / heads;
    const auto offset = [&](const auto& view, std::int64_t row, std::int64_t column) {
        return row * view.stride(0) + (matrix ? column * view.stride(1) : 0);
    };
    for (std::int64_t row = 0; row < kv_heads * size; ++row) {
        const std::int64_t first = row / size * group, d = row % size;
        for (std::int64_t column = 0; column < columns; ++column) {
            double sum = 0;
            for (std::int64_t h = first; h < first + group; ++h) {
                sum += read_number(weight.dtype(), weight.data(), offset(weight, h * size + d, column));
            }
            write_number(pooled.dtype(), pooled.data(), offset(pooled, row, column), sum / static_cast<double>(group));
        }
    }
}

}  // namespace heed::reference
