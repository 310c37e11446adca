#include <heed/error.h>
#include <heed/gguf.h>

#include <cstdint>

#include "require.h"

/// A file is read or refused; every tensor of one that is read can be had, in its shape.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    try {
        const heed::GgufFile file = heed::GgufFile::from_memory(std::as_bytes(std::span(data, size)));
        for (const std::string& name : file.names()) {
            require(file.contains(name) && file.entry(name).end <= size);
            require(file.tensor(name).shape() == file.entry(name).shape);
        }
    } catch (const heed::FileError&) { return 0; }
    return 0;
}
