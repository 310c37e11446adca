#pragma once
#include <heed/safetensors.h>

#include <bit>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// The format, as both directions need it:
///
///     0..7      N, unsigned 64-bit little-endian
///     8..8+N    JSON: {"name": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, ..., "__metadata__": {...}}
///     8+N..end  the tensors, back to back, row-major, little-endian
namespace heed::safetensors {

// Numbers and elements are read and written as they lie in memory.
static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

constexpr std::uint64_t prefix_bytes = 8;
constexpr std::uint64_t max_header_bytes = 100'000'000;
/// Bounds the memory that a header can ask for, apart from its length; also for metadata.
constexpr std::size_t max_entries = 1'000'000;
constexpr std::size_t max_name_bytes = 4096;
constexpr std::string_view metadata_key = "__metadata__";

/// "F32", "BOOL", ...
std::string_view file_name_of(DType dtype);
std::optional<DType> dtype_from_file_name(std::string_view name);

/// Bytes of a row-major tensor; nothing where the count, or a stride, leaves 63 bits. A 0 among the extents makes the
/// size 0, but the other extents still have to multiply within bounds: strides are their products.
std::optional<std::uint64_t> tensor_bytes(DType dtype, const Shape& shape);

struct Header {
    std::vector<std::string> names;
    /// Ordered, not hashed: a file cannot choose names that make this slow.
    std::map<std::string, SafetensorsFile::Entry, std::less<>> entries;
    SafetensorsMetadata metadata;
};

/// Parses the JSON and checks every rule of the format; `data_bytes` follow it in the file.
/// Throws FileError, text beginning with `context`.
Header parse_header(std::string_view json, std::uint64_t data_bytes, const std::string& context);

}  // namespace heed::safetensors
