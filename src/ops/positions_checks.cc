#include "ops/positions_checks.h"

#include "base/dispatch.h"
#include "ops/attention_checks.h"

namespace heed {
View checked_positions(const char* function, const char* argument, const View& positions, std::int64_t batch,
                       std::int64_t length) {
    if (!positions) { return {}; }
    View rows = positions;
    if (positions.rank() == 1) {
        rows = View(positions.dtype(), positions.data(), {1, positions.extent(0)}, {0, positions.stride(0)},
                    positions.device());
    }
    if (rows.rank() != 2 || rows.extent(1) != length || (rows.extent(0) != batch && rows.extent(0) != 1)) {
        refuse(function, argument, to_string(Shape{batch, length}) + " or " + to_string(Shape{length}),
               to_string(positions.shape()));
    }
    check_dtype(function, argument, positions, {DType::i64, DType::i32});
    if (positions.device().kind != DeviceKind::cpu) {
        refuse(function, argument, "memory of the CPU", "memory on " + to_string(positions.device()));
    }
    if (positions.data() == nullptr && positions.shape().elements() > 0) {
        refuse(function, argument, "memory", "a null pointer");
    }
    for (std::int64_t b = 0; b < rows.extent(0); ++b) {
        for (std::int64_t t = 0; t < length; ++t) {
            const std::int64_t value = read_integer(rows.dtype(), rows.data(), b * rows.stride(0) + t * rows.stride(1));
            if (value > largest_position || value < -largest_position) {
                refuse(function, argument, "positions within 2^53", std::to_string(value));
            }
        }
    }
    return rows;
}

void check_first(const char* function, std::int64_t first, std::int64_t length, const View& positions) {
    if (positions && first != 0) { refuse(function, "first", "0 beside positions", std::to_string(first)); }
    if (first < -largest_position || first > largest_position - length) {
        refuse(function, "first", "positions within 2^53", std::to_string(first));
    }
}

}  // namespace heed
