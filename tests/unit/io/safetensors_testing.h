#pragma once
#include <heed/safetensors.h>

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <string_view>

/// What the tests of reading and of writing share.
namespace heed::testing {

inline std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

/// The file with this header, as it is, and this data.
inline std::string assemble(std::string_view header, std::string_view data) {
    const std::uint64_t length = header.size();
    std::string bytes(8, '\0');
    std::memcpy(bytes.data(), &length, 8);
    return bytes.append(header).append(data);
}

/// The text of the FileError that `action` throws.
inline std::string file_error(const std::function<void()>& action) {
    try {
        action();
    } catch (const FileError& error) { return error.what(); }
    return "accepted";
}

/// Why these bytes are no file, without the function and the label; "accepted" where they are one.
inline std::string refusal(const std::string& bytes) {
    std::string text = file_error([&] { SafetensorsFile::from_memory(bytes_of(bytes)); });
    constexpr std::string_view prefix = "[SafetensorsFile] memory: ";
    if (text == "accepted") { return text; }
    EXPECT_TRUE(text.starts_with(prefix)) << text;
    return text.substr(prefix.size());
}

/// Touches all that the bytes offer; false where they were refused.
inline bool read_everything(const std::string& bytes) {
    // Of exactly this size on the heap, so that a sanitizer sees one byte too many.
    const std::vector<std::byte> exact(bytes_of(bytes).begin(), bytes_of(bytes).end());
    try {
        const SafetensorsFile file = SafetensorsFile::from_memory(exact);
        for (const std::string& name : file.names()) {
            const Tensor copy = file.tensor(name);
            if (file.is_aligned(name)) {
                const View view = file.view(name);
                EXPECT_EQ(copy.bytes() == 0 ? 0 : std::memcmp(view.data(), copy.data(), copy.bytes()), 0);
            }
        }
        return true;
    } catch (const FileError&) { return false; }
}

/// Metadata, four tensors of different widths, one of them empty, one a scalar.
inline std::string sample_file() {
    return assemble(R"({"__metadata__":{"spec":"{}"},"d":{"dtype":"F64","shape":[],"data_offsets":[0,8]},)"
                    R"("h":{"dtype":"BF16","shape":[2,3],"data_offsets":[8,20]},)"
                    R"("e":{"dtype":"I32","shape":[3,0],"data_offsets":[20,20]},)"
                    R"("b":{"dtype":"BOOL","shape":[3],"data_offsets":[20,23]}}   )",
                    std::string(20, '\x3f') + std::string("\1\0\1", 3));
}

inline void write_bytes(const std::filesystem::path& path, std::string_view bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc).write(bytes.data(), static_cast<long>(bytes.size()));
}

inline std::string read_bytes(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

/// Gone, with all in it, at the end of the test.
class TemporaryFolder {
public:
    TemporaryFolder() {
        std::string pattern = (std::filesystem::temp_directory_path() / "heed-test-XXXXXX").string();
        if (::mkdtemp(pattern.data()) == nullptr) { throw std::runtime_error("cannot create " + pattern); }
        path_ = pattern;
    }
    TemporaryFolder(const TemporaryFolder&) = delete;
    TemporaryFolder& operator=(const TemporaryFolder&) = delete;
    ~TemporaryFolder() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    const std::filesystem::path& path() const { return path_; }
    std::filesystem::path operator/(std::string_view name) const { return path_ / name; }
    std::size_t files() const {
        return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(path_), {}));
    }

private:
    std::filesystem::path path_;
};

}  // namespace heed::testing
