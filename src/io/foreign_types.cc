#include "io/foreign_types.h"

#include "io/safetensors_header.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace heed::safetensors {
namespace {

constexpr std::array<ForeignType, 9> foreign_types{{{"F8_E4M3", 8, 3, 7, Specials::nan_all_ones},
                                                    {"F8_E5M2", 8, 2, 15, Specials::ieee},
                                                    {"F8_E4M3FNUZ", 8, 3, 8, Specials::nan_minus_0},
                                                    {"F8_E5M2FNUZ", 8, 2, 16, Specials::nan_minus_0},
                                                    {"F8_E8M0", 8, 0, 127, Specials::nan_last},
                                                    {"F4", 4},
                                                    {"F6_E2M3", 6},
                                                    {"F6_E3M2", 6},
                                                    {"C64", 64}}};

bool is_nan(std::uint8_t bits, const ForeignType& type) {
    switch (type.specials) {
        case Specials::ieee: return (bits & 0x7f) > (0x7f >> type.fraction_bits << type.fraction_bits);
        case Specials::nan_all_ones: return (bits & 0x7f) == 0x7f;
        case Specials::nan_minus_0: return bits == 0x80;
        case Specials::nan_last: return bits == 0xff;
    }
    return false;
}

}  // namespace

const ForeignType* foreign_type(std::string_view name) {
    const auto found = std::ranges::find(foreign_types, name, &ForeignType::name);
    return found == foreign_types.end() ? nullptr : found;
}

bool is_readable(const ForeignType& type) { return type.bits == 8; }

float as_float(std::uint8_t bits, const ForeignType& type) {
    if (is_nan(bits, type)) { return std::numeric_limits<float>::quiet_NaN(); }
    if (type.specials == Specials::nan_last) { return std::ldexp(1.0F, bits - type.bias); }
    const int exponent = (bits & 0x7f) >> type.fraction_bits;
    const int fraction = bits & ((1 << type.fraction_bits) - 1);
    const float sign = (bits & 0x80) != 0 ? -1.0F : 1.0F;
    if (type.specials == Specials::ieee && exponent == 0x7f >> type.fraction_bits) {
        return sign * std::numeric_limits<float>::infinity();
    }
    const int whole = exponent == 0 ? fraction : fraction + (1 << type.fraction_bits);
    return sign * std::ldexp(static_cast<float>(whole), std::max(exponent, 1) - type.bias - type.fraction_bits);
}

std::optional<std::uint64_t> bytes_of(const ForeignType& type, const Shape& shape) {
    if (type.bits == 64) { return tensor_bytes(DType::i64, shape); }
    const std::optional<std::uint64_t> elements = tensor_bytes(DType::u8, shape);
    const auto bits = static_cast<std::uint64_t>(type.bits);
    if (!elements || *elements % 8 * bits % 8 != 0) { return std::nullopt; }
    return *elements / 8 * bits + *elements % 8 * bits / 8;
}

}  // namespace heed::safetensors
