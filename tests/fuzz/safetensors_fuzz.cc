#include <heed/safetensors.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "require.h"

namespace {

/// Opens the bytes and touches all they offer. Refusal by FileError is the only way out besides success.
void read_everything(std::span<const std::byte> bytes) {
    try {
        const heed::SafetensorsFile file = heed::SafetensorsFile::from_memory(bytes);
        std::size_t data_bytes = 0;
        unsigned sum = 0;
        for (const std::string& name : file.names()) {
            require(file.contains(name));
            const auto& entry = file.entry(name);
            data_bytes += entry.end - entry.begin;
            try {
                const heed::Tensor copy = file.tensor(name);
                const std::size_t growth = entry.file_type.starts_with("F8_") ? sizeof(float) : 1;
                require(copy.bytes() == growth * (entry.end - entry.begin));
                if (!file.is_aligned(name)) { continue; }
                const heed::View view = file.view(name);
                require(view.shape() == copy.shape() && view.dtype() == copy.dtype());
                require(copy.bytes() == 0 || std::memcmp(view.data(), copy.data(), copy.bytes()) == 0);
            } catch (const heed::FileError&) {
                const bool foreign =
                    entry.file_type.starts_with("F6_") || entry.file_type == "F4" || entry.file_type == "C64";
                require(foreign || entry.dtype == heed::DType::boolean);  // a byte other than 0 and 1
            }
        }
        for (const auto& [key, value] : file.metadata()) { sum += static_cast<unsigned>(key.size() + value.size()); }
        // Every byte behind the header belongs to exactly one tensor.
        std::uint64_t header_bytes = 0;
        std::memcpy(&header_bytes, bytes.data(), 8);
        require(8 + header_bytes + data_bytes == bytes.size());
        require(sum <= header_bytes);
    } catch (const heed::FileError&) { return; }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::span<const std::byte> input(reinterpret_cast<const std::byte*>(data), size);
    read_everything(input);
    // Once more with the right length in front, which a change in the middle rarely guesses: the header then ends
    // with the last brace.
    std::size_t header_bytes = size;
    while (header_bytes > 0 && data[header_bytes - 1] != '}') { --header_bytes; }
    const std::uint64_t length = header_bytes;
    std::vector<std::byte> file(8 + size);
    std::memcpy(file.data(), &length, 8);
    if (size > 0) { std::memcpy(file.data() + 8, data, size); }
    read_everything(file);
    return 0;
}
