#pragma once
#include <heed/sizes.h>

namespace heed {

/// Largest values that a shape may hold. Far beyond any model; they keep nonsense from files out early.
namespace shape_limit {
constexpr std::int64_t layers = 1 << 16;
constexpr std::int64_t width = 1 << 24;  // d_model, d_ff, ranks, sizes of a head, heads, experts
constexpr std::int64_t rows = 1 << 30;   // vocabulary, positions
}  // namespace shape_limit

/// Throws Error `[function] field: expected ..., got ...` unless every field is in range and they agree.
void check_shape(std::string_view function, const ModelShape& model);

}  // namespace heed
