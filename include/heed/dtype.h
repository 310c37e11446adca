#pragma once
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>

/// Marks what the shared library exports; everything else stays hidden.
#if defined(HEED_BUILD_SHARED) || defined(HEED_USE_SHARED)
#define HEED_API __attribute__((visibility("default")))
#else
#define HEED_API
#endif

namespace heed {

/// What an element of a tensor is. The first four can be attended with; the rest carry
/// masks, lengths, positions, and whatever else a file holds.
enum class DType : std::uint8_t { f32, bf16, f16, f64, i64, i32, i16, i8, u64, u32, u16, u8, boolean };

/// bfloat16: the upper half of a float32. Conversion rounds to nearest, ties to even.
struct bf16 {
    std::uint16_t bits = 0;
    bf16() = default;
    constexpr explicit bf16(float value) : bits(round(value)) {}
    constexpr explicit operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
    constexpr explicit operator double() const { return static_cast<float>(*this); }
    static constexpr bf16 from_bits(std::uint16_t bits) {
        bf16 result;
        result.bits = bits;
        return result;
    }

private:
    static constexpr std::uint16_t round(float value) {
        const auto word = std::bit_cast<std::uint32_t>(value);
        if ((word & 0x7fffffffU) > 0x7f800000U) {
            return static_cast<std::uint16_t>((word >> 16) | 0x40U);  // NaN stays NaN
        }
        return static_cast<std::uint16_t>((word + 0x7fffU + ((word >> 16) & 1U)) >> 16);
    }
};

/// IEEE binary16. Conversion rounds to nearest, ties to even.
struct f16 {
    std::uint16_t bits = 0;
    f16() = default;
    constexpr explicit f16(float value) : bits(round(value)) {}
    constexpr explicit operator float() const { return widen(bits); }
    constexpr explicit operator double() const { return widen(bits); }
    static constexpr f16 from_bits(std::uint16_t bits) {
        f16 result;
        result.bits = bits;
        return result;
    }

private:
    static constexpr float widen(std::uint16_t half) {
        const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000U) << 16;
        const std::uint32_t magnitude = half & 0x7fffU;
        if (magnitude >= 0x7c00U) {  // infinity, NaN
            return std::bit_cast<float>(sign | 0x7f800000U | ((magnitude & 0x3ffU) << 13));
        }
        if (magnitude < 0x400U) {  // zero, subnormal: an integer times 2^-24, exact
            const float value = static_cast<float>(magnitude) * 0x1p-24F;
            return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(value));
        }
        return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000U));
    }
    static constexpr std::uint16_t round(float value) {
        const auto word = std::bit_cast<std::uint32_t>(value);
        const auto sign = static_cast<std::uint16_t>((word >> 16) & 0x8000U);
        const std::uint32_t magnitude = word & 0x7fffffffU;
        if (magnitude > 0x7f800000U) { return static_cast<std::uint16_t>(sign | 0x7e00U); }
        if (magnitude >= 0x477ff000U) { return static_cast<std::uint16_t>(sign | 0x7c00U); }  // 65520 and up
        if (magnitude < 0x38800000U) {  // below 2^-14: adding 0.5 lines the half's bits up and rounds
            const float sum = std::bit_cast<float>(magnitude) + 0.5F;
            return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(sum) - 0x3f000000U));
        }
        const std::uint32_t rounded = magnitude - 0x38000000U + 0xfffU + ((magnitude >> 13) & 1U);
        return static_cast<std::uint16_t>(sign | (rounded >> 13));
    }
};

template <class T>
concept Element = std::same_as<T, float> || std::same_as<T, bf16> || std::same_as<T, f16> || std::same_as<T, double> ||
    std::same_as<T, std::int64_t> || std::same_as<T, std::int32_t> || std::same_as<T, std::int16_t> ||
    std::same_as<T, std::int8_t> || std::same_as<T, std::uint64_t> || std::same_as<T, std::uint32_t> ||
    std::same_as<T, std::uint16_t> || std::same_as<T, std::uint8_t> || std::same_as<T, bool>;

template <Element T>
constexpr DType dtype_of() {
    if constexpr (std::same_as<T, float>) {
        return DType::f32;
    } else if constexpr (std::same_as<T, bf16>) {
        return DType::bf16;
    } else if constexpr (std::same_as<T, f16>) {
        return DType::f16;
    } else if constexpr (std::same_as<T, double>) {
        return DType::f64;
    } else if constexpr (std::same_as<T, std::int64_t>) {
        return DType::i64;
    } else if constexpr (std::same_as<T, std::int32_t>) {
        return DType::i32;
    } else if constexpr (std::same_as<T, std::int16_t>) {
        return DType::i16;
    } else if constexpr (std::same_as<T, std::int8_t>) {
        return DType::i8;
    } else if constexpr (std::same_as<T, std::uint64_t>) {
        return DType::u64;
    } else if constexpr (std::same_as<T, std::uint32_t>) {
        return DType::u32;
    } else if constexpr (std::same_as<T, std::uint16_t>) {
        return DType::u16;
    } else if constexpr (std::same_as<T, std::uint8_t>) {
        return DType::u8;
    } else {
        return DType::boolean;
    }
}

/// Bytes of one element.
constexpr std::size_t size_of(DType dtype) {
    switch (dtype) {
        case DType::f64:
        case DType::i64:
        case DType::u64: return 8;
        case DType::f32:
        case DType::i32:
        case DType::u32: return 4;
        case DType::bf16:
        case DType::f16:
        case DType::i16:
        case DType::u16: return 2;
        case DType::i8:
        case DType::u8:
        case DType::boolean: return 1;
    }
    return 0;
}

constexpr bool is_floating(DType dtype) { return dtype <= DType::f64; }

/// "f32", "bf16", ... as the command line and the error messages write them.
HEED_API std::string_view name_of(DType dtype);

}  // namespace heed
