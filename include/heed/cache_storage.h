#pragma once
#include <cstdint>
#include <string_view>

#include <heed/dtype.h>

namespace heed {

/// How the numbers of a cache are stored. Attention reads them as they are: nothing is ever widened into a copy.
enum class CacheStorage : std::uint8_t {
    f32,
    bf16,
    f16,
    i8,  ///< a byte and one f32 scale per row (token and head): x' = byte * scale, |x - x'| <= max|row| / 254
    i4,  ///< half a byte and one f32 scale per 32 columns of a row: x' = (nibble - 8) * scale, |x - x'| <= max / 14
};

/// "f32", "bf16", "f16", "i8", "i4".
HEED_API std::string_view name_of(CacheStorage storage);

}  // namespace heed
