/// Quantised types of GGUF against the package gguf: see make_gguf.py.
#include <heed/gguf.h>

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

namespace heed::testing {
namespace {

template <class T>
void append_number(std::vector<std::byte>& to, T value) {
    const auto bytes = std::as_bytes(std::span(&value, 1));
    to.insert(to.end(), bytes.begin(), bytes.end());
}

/// A file with one tensor "t" of one row.
std::vector<std::byte> file_of(std::uint32_t type, std::uint64_t columns, const std::string& hexadecimal) {
    std::vector<std::byte> file;
    append_number(file, 0x46554747U);
    append_number(file, std::uint32_t{3});
    append_number(file, std::uint64_t{1});
    append_number(file, std::uint64_t{0});
    append_number(file, std::uint64_t{1});
    append_number(file, 't');
    append_number(file, std::uint32_t{1});
    append_number(file, columns);
    append_number(file, type);
    append_number(file, std::uint64_t{0});
    file.resize((file.size() + 31) / 32 * 32);
    for (std::size_t at = 0; at < hexadecimal.size(); at += 2) {
        append_number(file, static_cast<std::uint8_t>(std::stoi(hexadecimal.substr(at, 2), nullptr, 16)));
    }
    return file;
}

TEST(GgufGolden, BlocksGiveTheNumbersOfThePackage) {
    std::ifstream file(std::string(HEED_TEST_DATA) + "/gguf_blocks.json");
    const nlohmann::json cases = nlohmann::json::parse(file);
    ASSERT_EQ(cases.size(), 13U);
    for (const nlohmann::json& one : cases) {
        SCOPED_TRACE(one["name"].get<std::string>());
        const auto values = one["values"].get<std::vector<float>>();
        const std::vector<std::byte> bytes = file_of(one["type"], values.size(), one["bytes"]);
        const Tensor tensor = GgufFile::from_memory(bytes).tensor("t");
        ASSERT_EQ(tensor.shape(), (Shape{static_cast<std::int64_t>(values.size())}));
        for (std::size_t n = 0; n < values.size(); ++n) { ASSERT_EQ(tensor.as<float>()[n], values[n]) << n; }
    }
}

}  // namespace
}  // namespace heed::testing
