#include <heed/safetensors.h>

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cstring>
#include <numeric>

#include "unit/io/safetensors_testing.h"

namespace heed {
namespace {

using testing::read_bytes;
using testing::TemporaryFolder;
using testing::write_bytes;

constexpr DType all_dtypes[] = {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i64, DType::i32,    DType::i16,
                                DType::i8,  DType::u64,  DType::u32, DType::u16, DType::u8,  DType::boolean};

/// Every byte different from its neighbours, and 0 or 1 for booleans.
Tensor patterned(DType dtype, const Shape& shape, int seed) {
    Tensor tensor(dtype, shape);
    auto* bytes = static_cast<unsigned char*>(tensor.data());
    for (std::size_t n = 0; n < tensor.bytes(); ++n) {
        const std::size_t value = n * 37 + static_cast<std::size_t>(seed) * 11;
        bytes[n] = static_cast<unsigned char>(dtype == DType::boolean ? value % 3 % 2 : value);
    }
    return tensor;
}

bool same_bytes(const void* a, const void* b, std::size_t bytes) { return bytes == 0 || std::memcmp(a, b, bytes) == 0; }

std::string write_error(const std::filesystem::path& path, const std::vector<NamedView>& tensors,
                        const SafetensorsMetadata& metadata = {}) {
    try {
        write_safetensors(path, tensors, metadata);
    } catch (const Error& error) { return error.what(); }
    return "accepted";
}

TEST(SafetensorsWrite, SmallestFileByteForByte) {
    TemporaryFolder folder;
    const float values[2] = {1.0F, 2.0F};
    write_safetensors(folder / "a.safetensors", {{"a", View(values, {2})}});
    std::string expected("\x38\0\0\0\0\0\0\0", 8);
    expected += R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}  )";
    expected += std::string("\0\0\x80\x3f\0\0\0\x40", 8);
    ASSERT_EQ(expected.size(), 72U);
    EXPECT_EQ(read_bytes(folder / "a.safetensors"), expected);
}

TEST(SafetensorsWrite, NoTensorsNoMetadata) {
    TemporaryFolder folder;
    write_safetensors(folder / "a", {});
    EXPECT_EQ(read_bytes(folder / "a"), std::string("\x08\0\0\0\0\0\0\0{}      ", 16));
    EXPECT_TRUE(SafetensorsFile::open(folder / "a").names().empty());
}

TEST(SafetensorsWrite, EveryDtypeAndShapeComesBack) {
    TemporaryFolder folder;
    const std::vector<Shape> shapes = {{}, {1}, {3}, {0}, {2, 0, 5}, {3, 5}, {1, 2, 1, 3}, {1, 1, 2, 1, 1, 1, 3, 1}};
    std::vector<Tensor> tensors;
    std::vector<NamedView> named;
    for (const DType dtype : all_dtypes) {
        for (const Shape& shape : shapes) {
            tensors.push_back(patterned(dtype, shape, static_cast<int>(tensors.size())));
        }
    }
    std::vector<std::string> names;
    for (const Tensor& tensor : tensors) {
        names.push_back(std::string(name_of(tensor.dtype())) + to_string(tensor.shape()));
        named.push_back({names.back(), tensor.view()});
    }
    write_safetensors(folder / "all", named);
    const SafetensorsFile file = SafetensorsFile::open(folder / "all");
    EXPECT_EQ(file.names(), names);
    for (std::size_t n = 0; n < tensors.size(); ++n) {
        SCOPED_TRACE(names[n]);
        ASSERT_TRUE(file.is_aligned(names[n]));  // though narrow and wide ones alternate
        const View view = file.view(names[n]);
        const Tensor copy = file.tensor(names[n]);
        EXPECT_EQ(view.dtype(), tensors[n].dtype());
        EXPECT_EQ(view.shape(), tensors[n].shape());
        EXPECT_EQ(view.strides(), tensors[n].shape().row_major());
        EXPECT_EQ(copy.dtype(), tensors[n].dtype());
        EXPECT_EQ(copy.shape(), tensors[n].shape());
        EXPECT_TRUE(same_bytes(view.data(), tensors[n].data(), tensors[n].bytes()));
        EXPECT_TRUE(same_bytes(copy.data(), tensors[n].data(), tensors[n].bytes()));
    }
}

TEST(SafetensorsWrite, AnyStrides) {
    TemporaryFolder folder;
    const Tensor base = patterned(DType::i32, {4, 6, 5}, 1);
    const auto* last = base.as<std::int32_t>() + base.elements() - 1;
    const std::vector<NamedView> views = {
        {"whole", base},
        {"transposed", base.view().permute({2, 0, 1})},
        {"rows", base.view().slice(0, 1, 3)},
        {"inner slice", base.view().slice(1, 2, 5)},
        {"last axis slice", base.view().slice(2, 1, 4).permute({1, 0, 2})},
        {"one wide", base.view().slice(2, 3, 4)},
        {"broadcast", View(base.as<std::int32_t>(), {3, 5}, {0, 1})},
        {"one number", View(base.as<std::int32_t>(), {2, 2}, {0, 0})},
        {"backwards", View(last, {4, 30}, {-30, -1})},
        {"empty", base.view().slice(1, 2, 2)},
    };
    write_safetensors(folder / "views", views);
    const SafetensorsFile file = SafetensorsFile::open(folder / "views");
    for (const auto& [name, view] : views) {
        SCOPED_TRACE(name);
        const Tensor expected = Tensor::copy_of(view);
        const View got = file.view(name);
        EXPECT_EQ(got.shape(), view.shape());
        EXPECT_TRUE(same_bytes(got.data(), expected.data(), expected.bytes()));
    }
    const auto backwards = file.tensor("backwards");
    EXPECT_EQ(backwards.as<std::int32_t>()[0], *last);
    EXPECT_EQ(backwards.as<std::int32_t>()[119], base.as<std::int32_t>()[0]);
}

TEST(SafetensorsWrite, LargerThanTheBuffer) {
    TemporaryFolder folder;
    const Tensor base = patterned(DType::f32, {1100, 1000}, 3);
    write_safetensors(folder / "big", {{"t", base.view().permute({1, 0})}, {"w", base}});
    const SafetensorsFile file = SafetensorsFile::open(folder / "big");
    EXPECT_TRUE(same_bytes(file.view("w").data(), base.data(), base.bytes()));
    const Tensor expected = Tensor::copy_of(base.view().permute({1, 0}));
    EXPECT_TRUE(same_bytes(file.view("t").data(), expected.data(), expected.bytes()));
}

TEST(SafetensorsWrite, TextComesBack) {
    TemporaryFolder folder;
    const SafetensorsMetadata metadata = {
        {"spec", "{\"causal\":true}"}, {"", "\n\t\\\"\x01"}, {"\xf0\x9f\x98\x80", std::string("a\0b", 3)}};
    const std::vector<std::string> names = {"h.0.attn/\xc3\xa9", "\"quoted\"\n", std::string("zero\0byte", 9)};
    const std::uint8_t byte = 7;
    std::vector<NamedView> tensors;
    for (const std::string& name : names) { tensors.push_back({name, View(&byte, {})}); }
    write_safetensors(folder / "text", tensors, metadata);
    const SafetensorsFile file = SafetensorsFile::open(folder / "text");
    EXPECT_EQ(file.metadata(), metadata);
    EXPECT_EQ(file.names(), names);
}

TEST(SafetensorsWrite, WrongArguments) {
    TemporaryFolder folder;
    const std::uint8_t bytes[2] = {1, 2};
    const View good(bytes, {2});
    const auto path = folder / "x";
    const std::string names =
        "[write_safetensors] tensors: expected names of 1 to 4096 bytes other than __metadata__, ";
    EXPECT_EQ(write_error(path, {{"", good}}), names + "got ''");
    EXPECT_EQ(write_error(path, {{"__metadata__", good}}), names + "got '__metadata__'");
    EXPECT_EQ(write_error(path, {{std::string(4097, 'n'), good}}),
              names + "got '" + std::string(100, 'n') + "'... (4097 bytes)");
    EXPECT_EQ(write_error(path, {{"a", good}, {"a", good}}),
              "[write_safetensors] tensors: expected each name once, got 'a' twice");
    EXPECT_EQ(write_error(path, {{"a", View()}}),
              "[write_safetensors] tensors: 'a': expected a view, got an absent one");
    EXPECT_EQ(write_error(path, {{"a", View(static_cast<const float*>(nullptr), {2})}}),
              "[write_safetensors] tensors: 'a': expected memory for [2], got a null pointer");
    EXPECT_EQ(write_error(path, {{"\xff", good}}), "[write_safetensors] tensors: expected UTF-8, got '\\xff'");
    EXPECT_EQ(write_error(path, {}, {{"k", "\xff"}}), "[write_safetensors] metadata: expected UTF-8, got '\\xff'");
    EXPECT_EQ(write_error(path, {}, {{"k", std::string(100'000'000, 'x')}}),
              "[write_safetensors] tensors, metadata: expected a header of at most 100000000 bytes, got 100000032");
    const std::int64_t half = std::int64_t{1} << 62;
    EXPECT_EQ(write_error(path, {{"a", View(bytes, {half}, {0})}, {"b", View(bytes, {half}, {0})}}),
              "[write_safetensors] tensors: 'b': expected fewer than 2^63 bytes in all, got [4611686018427387904]");
    EXPECT_EQ(write_error(path, {{"a", View(DType::boolean, bytes, {2})}}),
              "[write_safetensors] tensors: 'a': expected booleans of 0 and 1, got another byte");
    EXPECT_EQ(folder.files(), 0U);
}

TEST(SafetensorsWrite, FailureLeavesTheOldFile) {
    TemporaryFolder folder;
    write_bytes(folder / "old", "what was there");
    const std::uint8_t bytes[2] = {1, 2};
    EXPECT_NE(write_error(folder / "old", {{"a", View(DType::boolean, bytes, {2})}}), "accepted");
    EXPECT_EQ(read_bytes(folder / "old"), "what was there");
    EXPECT_EQ(folder.files(), 1U);
}

TEST(SafetensorsWrite, FullDiskLeavesTheOldFile) {
    TemporaryFolder folder;
    write_bytes(folder / "old", "what was there");
    const Tensor tensor = patterned(DType::f32, {1 << 20}, 5);
    // A limit on the size of files fails half-way as a full disk does.
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
    const auto handler = ::signal(SIGXFSZ, SIG_IGN);
    const rlimit small{std::size_t{2} << 20, before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
    const std::string message = testing::file_error([&] { write_safetensors(folder / "old", {{"a", tensor}}); });
    ::setrlimit(RLIMIT_FSIZE, &before);
    ::signal(SIGXFSZ, handler);
    EXPECT_EQ(message, "[write_safetensors] " + (folder / "old").string() + ": cannot write: File too large");
    EXPECT_EQ(read_bytes(folder / "old"), "what was there");
    EXPECT_EQ(folder.files(), 1U);
}

TEST(SafetensorsWrite, PlacesThatCannotBeWritten) {
    TemporaryFolder folder;
    const auto refusal = [](const std::filesystem::path& path) {
        return testing::file_error([&] { write_safetensors(path, {}); });
    };
    EXPECT_EQ(refusal(folder / "no/where"), "[write_safetensors] " + (folder / "no/where").string() +
                                                ": cannot create a temporary file in its folder: "
                                                "No such file or directory");
    EXPECT_EQ(refusal(folder.path()),
              "[write_safetensors] " + folder.path().string() + ": exists and is not a regular file");
    ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
    EXPECT_EQ(refusal(folder / "pipe"),
              "[write_safetensors] " + (folder / "pipe").string() + ": exists and is not a regular file");
    EXPECT_EQ(folder.files(), 1U);
}

TEST(SafetensorsWrite, ReplacesAFileThatIsBeingRead) {
    TemporaryFolder folder;
    const auto path = folder / "weights";
    const float old_values[2] = {1.0F, 2.0F};
    write_safetensors(path, {{"a", View(old_values, {2})}});
    ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
    const SafetensorsFile old_file = SafetensorsFile::open(path);
    const View old_view = old_file.view("a");
    // Its own view, reversed, over itself.
    write_safetensors(path, {{"a", View(old_view.as<float>() + 1, {2}, {-1})}});
    EXPECT_EQ(old_view.as<float>()[0], 1.0F);
    EXPECT_EQ(SafetensorsFile::open(path).view("a").as<float>()[0], 2.0F);
    struct stat status {};
    ASSERT_EQ(::stat(path.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777U, 0600U);  // private stays private
    EXPECT_EQ(folder.files(), 1U);
}

}  // namespace
}  // namespace heed
