#pragma once
#include <heed/tensor.h>

#include <cstdint>
#include <optional>
#include <string_view>

/// Element types of safetensors files that DType has no word for.
namespace heed::safetensors {

/// What the largest exponents mean.
enum class Specials : std::uint8_t {
    ieee,          ///< infinities and NaN, as in f16
    nan_all_ones,  ///< no infinities; NaN is all ones, with either sign
    nan_minus_0,   ///< no infinities; NaN is where -0 would be
    nan_last,      ///< powers of two alone, without a sign; NaN is the last
};

struct ForeignType {
    std::string_view name;
    int bits = 8;
    int fraction_bits = 0;
    int bias = 0;
    Specials specials = Specials::ieee;
};

/// Null where DType knows the type, or nobody does.
const ForeignType* foreign_type(std::string_view name);
/// Those of 8 bits become floats.
bool is_readable(const ForeignType& type);
float as_float(std::uint8_t bits, const ForeignType& type);
/// In a file; nothing where the count leaves 63 bits or the elements do not fill their last byte.
std::optional<std::uint64_t> bytes_of(const ForeignType& type, const Shape& shape);

}  // namespace heed::safetensors
