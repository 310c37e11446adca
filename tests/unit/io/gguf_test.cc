#include <heed/gguf.h>

#include <gtest/gtest.h>

#include <cstring>

namespace heed::testing {
namespace {

/// Writes a file piece by piece.
struct GgufBytes {
    std::vector<std::byte> bytes;
    template <class T>
    GgufBytes& number(T value) {
        const auto* from = reinterpret_cast<const std::byte*>(&value);
        bytes.insert(bytes.end(), from, from + sizeof(T));
        return *this;
    }
    GgufBytes& text(const std::string& value) {
        number(std::uint64_t{value.size()});
        for (const char c : value) { bytes.push_back(static_cast<std::byte>(c)); }
        return *this;
    }
    GgufBytes& begin(std::uint64_t tensors, std::uint64_t values) {
        return number(0x46554747U).number(std::uint32_t{3}).number(tensors).number(values);
    }
    GgufBytes& tensor(const std::string& name, std::uint64_t columns, std::uint64_t rows, std::uint32_t type,
                      std::uint64_t offset) {
        return text(name).number(std::uint32_t{2}).number(columns).number(rows).number(type).number(offset);
    }
    GgufBytes& pad() {
        bytes.resize((bytes.size() + 31) / 32 * 32);
        return *this;
    }
};

TEST(Gguf, TensorsAndValuesComeBack) {
    GgufBytes file;
    file.begin(3, 3);
    file.text("general.architecture").number(std::uint32_t{8}).text("llama");
    file.text("numbers")
        .number(std::uint32_t{9})
        .number(std::uint32_t{4})
        .number(std::uint64_t{2})
        .number(5U)
        .number(7U);
    file.text("eps").number(std::uint32_t{6}).number(0.5F);
    file.tensor("a", 2, 3, 0, 0).tensor("q8", 32, 1, 8, 32).tensor("q4", 32, 1, 2, 96).pad();
    for (int n = 0; n < 6; ++n) { file.number(static_cast<float>(n)); }
    file.pad();
    file.number(std::uint16_t{0x3800});  // 0.5
    for (int n = 0; n < 32; ++n) { file.number(static_cast<std::int8_t>(n - 16)); }
    file.pad();
    file.number(std::uint16_t{0x4000});  // 2
    for (int n = 0; n < 16; ++n) { file.number(static_cast<std::uint8_t>(n | (15 - n) << 4)); }
    const GgufFile read = GgufFile::from_memory(file.bytes);
    EXPECT_EQ(std::get<std::string>(read.metadata().at("general.architecture")), "llama");
    EXPECT_EQ(std::get<std::vector<std::int64_t>>(read.metadata().at("numbers")), (std::vector<std::int64_t>{5, 7}));
    EXPECT_EQ(std::get<double>(read.metadata().at("eps")), 0.5);
    const Tensor a = read.tensor("a");
    EXPECT_EQ(a.shape(), (Shape{3, 2}));
    EXPECT_EQ(a.as<float>()[5], 5);
    const Tensor q8 = read.tensor("q8"), q4 = read.tensor("q4");
    for (int n = 0; n < 32; ++n) {
        EXPECT_EQ(q8.as<float>()[n], 0.5F * static_cast<float>(n - 16));
        EXPECT_EQ(q4.as<float>()[n], 2.0F * static_cast<float>(n < 16 ? n - 8 : 15 - (n - 16) - 8));
    }
    EXPECT_THROW(read.tensor("b"), FileError);
    for (std::size_t cut = 0; cut < file.bytes.size(); ++cut) {  // every shorter file is refused
        EXPECT_THROW(GgufFile::from_memory(std::span(file.bytes).first(cut)), FileError) << cut;
    }
}

TEST(Gguf, OtherTypesAreRefusedByName) {
    for (const auto& [type, name] : {std::pair{16U, "IQ2_XXS"}, {35U, "TQ2_0"}, {28U, "F64"}, {77U, "type 77"}}) {
        GgufBytes file;
        file.begin(1, 0).tensor("a", 256, 1, type, 0).pad();
        try {
            GgufFile::from_memory(file.bytes);
            FAIL() << name;
        } catch (const FileError& error) { EXPECT_NE(std::string(error.what()).find(name), std::string::npos); }
    }
    GgufBytes narrow;  // a row that is no whole number of blocks
    narrow.begin(1, 0).tensor("a", 128, 2, 12, 0).pad();
    narrow.bytes.resize(1024);
    EXPECT_THROW(GgufFile::from_memory(narrow.bytes), FileError);
}

TEST(Gguf, ClaimsCostNothing) {
    constexpr std::uint64_t many = std::uint64_t{1} << 60U;
    EXPECT_THROW(GgufFile::from_memory(GgufBytes().begin(many, 0).bytes), FileError);
    EXPECT_THROW(GgufFile::from_memory(GgufBytes().begin(0, many).bytes), FileError);
    EXPECT_THROW(GgufFile::from_memory(GgufBytes().begin(1, 0).tensor("x", many, 1, 0, 0).bytes), FileError);
    EXPECT_THROW(GgufFile::from_memory(GgufBytes().begin(1, 0).tensor("x", 1 << 20, 1 << 19, 0, 0).pad().bytes),
                 FileError);
    EXPECT_THROW(GgufFile::from_memory(GgufBytes().begin(1, 0).tensor("x", 4, 4, 12, 0).pad().bytes), FileError);
    EXPECT_THROW(
        GgufFile::from_memory(
            GgufBytes().begin(0, 1).text("k").number(std::uint32_t{9}).number(std::uint32_t{8}).number(many).bytes),
        FileError);
}

}  // namespace
}  // namespace heed::testing
