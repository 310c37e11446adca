#include <heed/error.h>

#include <cstdint>
#include <string_view>

#include "../../src/model/index.h"
#include "require.h"

/// Whatever the text, no name that could leave the folder comes out.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    try {
        const auto entries =
            heed::read_weight_index("index", std::string_view(reinterpret_cast<const char*>(data), size));
        for (const auto& [tensor, file] : entries) {
            require(!file.empty() && file != "." && file != "..");
            require(file.find('/') == std::string::npos && file.find('\\') == std::string::npos);
        }
    } catch (const heed::FileError&) { return 0; }
    return 0;
}
