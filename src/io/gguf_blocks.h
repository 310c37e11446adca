#pragma once
#include <heed/gguf.h>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace heed {

/// Bytes of one block of numbers, and how many numbers that is.
struct GgufLayout {
    std::uint64_t numbers, bytes;
};

/// Of a type that heed reads.
std::optional<GgufLayout> gguf_layout(std::uint32_t type);
/// "IQ2_XXS", for messages.
std::string gguf_type_name(std::uint32_t type);

/// Blocks of a quantised type as numbers.
void unpack_gguf(GgufType type, const std::byte* from, float* to, std::int64_t blocks);

}  // namespace heed
