#include <heed/safetensors.h>

#include <gtest/gtest.h>

#include <sys/stat.h>
#include <cmath>

#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>

#include "support/sample.h"
#include "unit/io/safetensors_testing.h"

namespace heed {
namespace {

using testing::assemble;
using testing::bytes_of;
using testing::refusal;
using testing::TemporaryFolder;

constexpr std::string_view header_a = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";

/// A header with one tensor whose parts are given as JSON, before `data`.
std::string one_tensor(const std::string& dtype, const std::string& shape, const std::string& offsets,
                       const std::string& data) {
    return assemble("{\"a\":{\"dtype\":" + dtype + ",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}}", data);
}

std::string header_refusal(const std::string& header, const std::string& data = "") {
    return refusal(assemble(header, data));
}

TEST(SafetensorsRead, SmallestFile) {
    const float values[2] = {1.5F, -2.0F};
    std::string data(8, '\0');
    std::memcpy(data.data(), values, 8);
    const std::string bytes = assemble(std::string(header_a) + "  ", data);
    ASSERT_EQ(bytes.size(), 72U);
    const SafetensorsFile file = SafetensorsFile::from_memory(bytes_of(bytes));
    EXPECT_EQ(file.names(), std::vector<std::string>{"a"});
    EXPECT_TRUE(file.metadata().empty());
    EXPECT_TRUE(file.contains("a"));
    EXPECT_FALSE(file.contains("b"));
    EXPECT_EQ(file.entry("a").dtype, DType::f32);
    EXPECT_EQ(file.entry("a").shape, (Shape{2}));
    EXPECT_EQ(file.entry("a").begin, 0U);
    EXPECT_EQ(file.entry("a").end, 8U);
    const Tensor copy = file.tensor("a");
    EXPECT_EQ(copy.as<float>()[0], 1.5F);
    EXPECT_EQ(copy.as<float>()[1], -2.0F);
}

TEST(SafetensorsRead, EmptyObjectIsAFile) {
    const std::string bytes = assemble("{}", "");
    const SafetensorsFile file = SafetensorsFile::from_memory(bytes_of(bytes));
    EXPECT_TRUE(file.names().empty());
}

TEST(SafetensorsRead, NamesInHeaderOrderDataInAnyOrder) {
    const std::string bytes = assemble(R"({"z":{"dtype":"U8","shape":[1],"data_offsets":[2,3]},)"
                                       R"("empty":{"dtype":"F32","shape":[0,3],"data_offsets":[2,2]},)"
                                       R"("a":{"data_offsets":[0,2],"shape":[2],"dtype":"U8"}})",
                                       "xyz");
    const SafetensorsFile file = SafetensorsFile::from_memory(bytes_of(bytes));
    EXPECT_EQ(file.names(), (std::vector<std::string>{"z", "empty", "a"}));
    EXPECT_EQ(file.tensor("z").as<std::uint8_t>()[0], 'z');
    EXPECT_EQ(file.tensor("a").as<std::uint8_t>()[1], 'y');
    EXPECT_EQ(file.tensor("empty").elements(), 0);
}

TEST(SafetensorsRead, UnknownNameIsRefusedWithTheNamesThereAre) {
    const std::string bytes = assemble(header_a, std::string(8, '\0'));
    const SafetensorsFile file = SafetensorsFile::from_memory(bytes_of(bytes), "w.safetensors");
    for (const auto& ask :
         std::vector<std::function<void()>>{[&] { file.entry("b"); }, [&] { file.view("b"); },
                                            [&] { file.tensor("b"); }, [&] { file.is_aligned("b"); }}) {
        EXPECT_EQ(testing::file_error(ask), "[SafetensorsFile] w.safetensors: no tensor 'b' among its 1: 'a'");
    }
}

TEST(SafetensorsRead, UnalignedDataIsRefusedAsViewAndCopiedAsTensor) {
    // u8 first: the float begins at byte 1 of the data.
    const std::string header = R"({"u":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                               R"("f":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}})";
    const float value = 3.25F;
    std::string data(5, '\7');
    std::memcpy(data.data() + 1, &value, 4);
    std::string padded = header;
    padded.resize((header.size() + 7) / 8 * 8, ' ');
    const std::string bytes = assemble(padded, data);
    TemporaryFolder folder;
    testing::write_bytes(folder / "old.safetensors", bytes);
    const SafetensorsFile file = SafetensorsFile::open(folder / "old.safetensors");
    EXPECT_TRUE(file.is_aligned("u"));
    EXPECT_FALSE(file.is_aligned("f"));
    EXPECT_EQ(file.view("u").as<std::uint8_t>()[0], 7);
    EXPECT_EQ(testing::file_error([&] { file.view("f"); }),
              "[SafetensorsFile] " + (folder / "old.safetensors").string() +
                  ": tensor 'f': expected data aligned to 4 bytes, got it at byte " +
                  std::to_string(8 + padded.size() + 1) + "; tensor() copies it");
    EXPECT_EQ(file.tensor("f").as<float>()[0], value);
}

TEST(SafetensorsRead, BooleansAreZeroOrOne) {
    const std::string bytes = one_tensor(R"("BOOL")", "[3]", "[0,3]", std::string("\1\0\2", 3));
    const SafetensorsFile file = SafetensorsFile::from_memory(bytes_of(bytes));
    const std::string expected = "[SafetensorsFile] memory: tensor 'a': BOOL: expected 0 or 1, got 2 at element 2";
    EXPECT_EQ(testing::file_error([&] { file.tensor("a"); }), expected);
    EXPECT_EQ(testing::file_error([&] { file.view("a"); }), expected);
}

TEST(SafetensorsRead, LengthPrefix) {
    EXPECT_EQ(refusal(""), "expected at least 8 bytes, got 0");
    EXPECT_EQ(refusal(std::string(7, '\0')), "expected at least 8 bytes, got 7");
    EXPECT_EQ(refusal(std::string(8, '\0')), "header: expected to begin with '{', got nothing");
    EXPECT_EQ(refusal(std::string("\3\0\0\0\0\0\0\0{}", 10)),
              "header length: expected at most the 2 bytes that follow in the file, got 3");
    EXPECT_EQ(refusal(std::string("\x01\xe1\xf5\x05\0\0\0\0{}", 10)),
              "header length: expected at most 100000000 bytes, got 100000001");
    EXPECT_EQ(refusal(std::string(8, '\xff') + "{}"),
              "header length: expected at most 100000000 bytes, got 18446744073709551615");
}

TEST(SafetensorsRead, HeaderText) {
    EXPECT_EQ(header_refusal(" {}"), "header: expected to begin with '{', got ' '");
    EXPECT_EQ(header_refusal("[]"), "header: expected to begin with '{', got '['");
    EXPECT_EQ(header_refusal("{}\n"), "header: expected only spaces behind the JSON, got '\\x0a' at byte 2");
    EXPECT_EQ(header_refusal(std::string("{}\0{}", 5)), "header: expected text, got a zero byte at byte 2");
    for (const std::string broken : {"{", "{}x", "{}}", "{} {}", "{}//", "{'a':1}", "{\"a\"}", "{,}", "{\"a\":{},}"}) {
        const std::string message = header_refusal(broken);
        EXPECT_TRUE(message.starts_with("header: not valid JSON at byte ") ||
                    message.starts_with("tensor 'a': dtype is missing"))
            << broken << " -> " << message;
    }
}

TEST(SafetensorsRead, HeaderIsUtf8) {
    for (const std::string name : {"\xff", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82", "\n", "\\ud800",
                                   "\\udc00", "\\ud800\\u0041", "\\x41"}) {
        const std::string message = header_refusal("{\"" + name +
                                                   "\":{\"dtype\":\"U8\",\"shape\":[0],"
                                                   "\"data_offsets\":[0,0]}}");
        EXPECT_TRUE(message.starts_with("header: not valid JSON at byte ")) << message;
    }
    const std::string bytes =
        assemble("{\"\\u00e9\xc3\xa9\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", "");
    EXPECT_TRUE(SafetensorsFile::from_memory(bytes_of(bytes)).contains("\xc3\xa9\xc3\xa9"));
}

TEST(SafetensorsRead, EntriesAreObjectsOfThreeKeys) {
    EXPECT_EQ(header_refusal(R"({"a":1})"), "tensor 'a': expected an object, got the number 1");
    EXPECT_EQ(header_refusal(R"({"a":-1})"), "tensor 'a': expected an object, got the negative number -1");
    EXPECT_EQ(header_refusal(R"({"a":1.5})"), "tensor 'a': expected an object, got the number '1.5'");
    EXPECT_EQ(header_refusal(R"({"a":"x"})"), "tensor 'a': expected an object, got the string 'x'");
    EXPECT_EQ(header_refusal(R"({"a":null})"), "tensor 'a': expected an object, got null");
    EXPECT_EQ(header_refusal(R"({"a":false})"), "tensor 'a': expected an object, got false");
    EXPECT_EQ(header_refusal(R"({"a":[]})"), "tensor 'a': expected an object, got an array");
    EXPECT_EQ(header_refusal(R"({"a":{}})"), "tensor 'a': dtype is missing");
    EXPECT_EQ(header_refusal(R"({"a":{"dtype":"U8"}})"), "tensor 'a': shape is missing");
    EXPECT_EQ(header_refusal(R"({"a":{"dtype":"U8","shape":[0]}})"), "tensor 'a': data_offsets is missing");
    EXPECT_EQ(header_refusal(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"x":1}})"),
              "tensor 'a': expected the keys dtype, shape and data_offsets only, got 'x'");
    EXPECT_EQ(header_refusal(R"({"":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})"),
              "tensor '': expected a name of 1 to 4096 bytes, got 0");
    const std::string message = header_refusal("{\"" + std::string(4097, 'n') + "\":{}}");
    EXPECT_EQ(message,
              "tensor '" + std::string(100, 'n') + "'... (4097 bytes): expected a name of 1 to 4096 bytes, got 4097");
}

TEST(SafetensorsRead, NothingTwice) {
    const std::string entry = R"({"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
    EXPECT_EQ(header_refusal("{\"a\":" + entry + ",\"a\":" + entry + "}"), "tensor 'a' is there twice");
    EXPECT_EQ(header_refusal("{\"a\":" + entry + ",\"\\u0061\":" + entry + "}"), "tensor 'a' is there twice");
    EXPECT_EQ(header_refusal(R"({"a":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}})"),
              "tensor 'a': dtype is there twice");
    EXPECT_EQ(header_refusal(R"({"a":{"dtype":"U8","shape":[0],"shape":[0],"data_offsets":[0,0]}})"),
              "tensor 'a': shape is there twice");
    EXPECT_EQ(header_refusal(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"data_offsets":[0,0]}})"),
              "tensor 'a': data_offsets is there twice");
    EXPECT_EQ(header_refusal(R"({"__metadata__":{},"__metadata__":{}})"), "__metadata__ is there twice");
    EXPECT_EQ(header_refusal(R"({"__metadata__":{"k":"1","k":"1"}})"), "__metadata__: 'k' is there twice");
}

TEST(SafetensorsRead, MetadataIsStringToString) {
    EXPECT_EQ(header_refusal(R"({"__metadata__":1})"), "__metadata__: expected an object, got the number 1");
    EXPECT_EQ(header_refusal(R"({"__metadata__":{"k":1}})"), "__metadata__: 'k': expected a string, got the number 1");
    EXPECT_EQ(header_refusal(R"({"__metadata__":{"k":null}})"), "__metadata__: 'k': expected a string, got null");
    EXPECT_EQ(header_refusal(R"({"__metadata__":{"k":{}}})"), "__metadata__: 'k': expected a string, got an object");
    EXPECT_EQ(header_refusal(R"({"__metadata__":{"k":[]}})"), "__metadata__: 'k': expected a string, got an array");
    const std::string bytes = assemble(R"({"__metadata__":{"format":"pt","":""}})", "");
    const SafetensorsFile file = SafetensorsFile::from_memory(bytes_of(bytes));
    EXPECT_EQ(file.metadata(), (SafetensorsMetadata{{"format", "pt"}, {"", ""}}));
    EXPECT_TRUE(file.names().empty());
    EXPECT_FALSE(file.contains("__metadata__"));
}

TEST(SafetensorsRead, DtypeMustBeKnown) {
    for (const std::string dtype : {"F8", "F8_E3M4", "F16_E5M10", "C128", "f32", "F32 ", ""}) {
        EXPECT_EQ(refusal(one_tensor("\"" + dtype + "\"", "[8]", "[0,8]", "12345678")),
                  "tensor 'a': dtype: expected F64, F32, F16, BF16, I64, I32, I16, I8, U64, U32, U16, U8 or BOOL, "
                  "got '" +
                      dtype + "'");
    }
    EXPECT_EQ(refusal(one_tensor("3", "[8]", "[0,8]", "12345678")),
              "tensor 'a': dtype: expected a string, got the number 3");
    EXPECT_EQ(refusal(one_tensor("{}", "[8]", "[0,8]", "12345678")),
              "tensor 'a': dtype: expected a string, got an object");
}

TEST(SafetensorsRead, NumbersOfEightBitsBecomeFloats) {
    // 0, smallest subnormal, largest subnormal, 1, -2, 448 (the largest), NaN, -0
    const std::string e4m3("\x00\x01\x07\x38\xc0\x7e\x7f\x80", 8);
    const float expected[] = {0, 0.001953125F, 0.013671875F, 1, -2, 448, NAN, -0.0F};
    const std::string bytes = one_tensor("\"F8_E4M3\"", "[2,4]", "[0,8]", e4m3);
    const SafetensorsFile file = SafetensorsFile::from_memory(bytes_of(bytes));
    const Tensor tensor = file.tensor("a");
    EXPECT_EQ(tensor.dtype(), DType::f32);
    EXPECT_EQ(tensor.shape(), (Shape{2, 4}));
    for (int n = 0; n < 8; ++n) {
        const float got = tensor.as<float>()[n];
        EXPECT_TRUE(got == expected[n] || (std::isnan(got) && std::isnan(expected[n]))) << n << ": " << got;
    }
    EXPECT_TRUE(std::signbit(tensor.as<float>()[7]));
    EXPECT_FALSE(file.is_aligned("a"));
    EXPECT_NE(testing::file_error([&] { static_cast<void>(file.view("a")); }).find("tensor() converts them"),
              std::string::npos);

    // 1, smallest subnormal, 57344 (the largest), infinity, -infinity, NaN
    const std::string e5m2("\x3c\x01\x7b\x7c\xfc\x7d", 6);
    const float wide[] = {1, 0.0000152587890625F, 57344, INFINITY, -INFINITY, NAN};
    const std::string other = one_tensor("\"F8_E5M2\"", "[6]", "[0,6]", e5m2);
    const Tensor second = SafetensorsFile::from_memory(bytes_of(other)).tensor("a");
    for (int n = 0; n < 6; ++n) {
        const float got = second.as<float>()[n];
        EXPECT_TRUE(got == wide[n] || (std::isnan(got) && std::isnan(wide[n]))) << n << ": " << got;
    }
    EXPECT_EQ(refusal(one_tensor("\"F8_E4M3\"", "[2]", "[0,8]", "12345678")),
              "tensor 'a': data_offsets: expected 2 bytes for F8_E4M3 [2], got [0, 8], 8 bytes");
}

TEST(SafetensorsRead, OtherNumbersOfEightBits) {
    const auto read = [](const std::string& type, const std::string& data) {
        const std::string extent = std::to_string(data.size());
        const std::string bytes = one_tensor("\"" + type + "\"", "[" + extent + "]", "[0," + extent + "]", data);
        const Tensor tensor = SafetensorsFile::from_memory(bytes_of(bytes)).tensor("a");
        return std::vector<float>(tensor.as<float>(), tensor.as<float>() + tensor.shape().elements());
    };
    // The largest, 1, -1, the smallest; NaN stands where -0 would.
    EXPECT_EQ(read("F8_E4M3FNUZ", "\x7f\x40\xc0\x01"), (std::vector<float>{240, 1, -1, 0x1p-10F}));
    EXPECT_EQ(read("F8_E5M2FNUZ", "\x7f\x40\xc0\x01"), (std::vector<float>{57344, 1, -1, 0x1p-17F}));
    EXPECT_EQ(read("F8_E8M0", "\x7f\x80\x01\xfe"), (std::vector<float>{1, 2, 0x1p-126F, 0x1p127F}));
    EXPECT_EQ(read("F8_E8M0", std::string(1, '\0')).front(), 0x1p-127F);
    EXPECT_TRUE(std::isnan(read("F8_E4M3FNUZ", "\x80").front()));
    EXPECT_TRUE(std::isnan(read("F8_E8M0", "\xff").front()));
}

TEST(SafetensorsRead, WhatCannotBeReadDoesNotKeepAFileFromBeingOpened) {
    struct Case {
        const char* type;
        const char* shape;
    };
    for (const Case& each : {Case{"F4", "[4,4]"}, Case{"F4", "[16]"}, Case{"C64", "[1]"}}) {
        const std::string bytes = one_tensor("\"" + std::string(each.type) + "\"", each.shape, "[0,8]", "12345678");
        const SafetensorsFile file = SafetensorsFile::from_memory(bytes_of(bytes));
        EXPECT_EQ(file.entry("a").file_type, each.type);
        EXPECT_FALSE(file.is_aligned("a"));
        const std::string expected = std::string("expected a type that heed can read, got ") + each.type;
        EXPECT_NE(testing::file_error([&] { static_cast<void>(file.tensor("a")); }).find(expected), std::string::npos);
        EXPECT_NE(testing::file_error([&] { static_cast<void>(file.view("a")); }).find(expected), std::string::npos);
    }
    const std::string six = one_tensor("\"F6_E2M3\"", "[2,4]", "[0,6]", "123456");
    EXPECT_EQ(SafetensorsFile::from_memory(bytes_of(six)).entry("a").end, 6U);
    EXPECT_NE(refusal(one_tensor("\"F4\"", "[15]", "[0,8]", "12345678")), "");
}

TEST(SafetensorsRead, ShapeIsNonNegativeIntegers) {
    const auto shape_refusal = [](const std::string& shape) {
        return refusal(one_tensor(R"("U8")", shape, "[0,8]", "12345678"));
    };
    const std::string digits = "tensor 'a': shape: expected integers from 0 to 2^63 - 1 in plain digits, got ";
    EXPECT_EQ(shape_refusal("8"), "tensor 'a': shape: expected an array, got the number 8");
    EXPECT_EQ(shape_refusal("{}"), "tensor 'a': shape: expected an array, got an object");
    EXPECT_EQ(shape_refusal("[-8]"), digits + "the negative number -8");
    EXPECT_EQ(shape_refusal("[-0]"), digits + "the negative number 0");
    EXPECT_EQ(shape_refusal("[8.0]"), digits + "the number '8.0'");
    EXPECT_EQ(shape_refusal("[8e0]"), digits + "the number '8e0'");
    EXPECT_EQ(shape_refusal("[9223372036854775808]"), digits + "the number 9223372036854775808");
    EXPECT_EQ(shape_refusal("[18446744073709551624]"), digits + "the number '18446744073709551624'");
    EXPECT_EQ(shape_refusal("[\"8\"]"), digits + "the string '8'");
    EXPECT_EQ(shape_refusal("[[8]]"), digits + "an array");
    EXPECT_EQ(shape_refusal("[{}]"), digits + "an object");
    EXPECT_EQ(shape_refusal("[null]"), digits + "null");
    EXPECT_TRUE(shape_refusal("[08]").starts_with("header: not valid JSON"));
    EXPECT_EQ(shape_refusal("[8,1,1,1,1,1,1,1]"), "accepted");
    EXPECT_EQ(shape_refusal("[8,1,1,1,1,1,1,1,1]"), "tensor 'a': shape: expected at most 8 axes, got more");
}

TEST(SafetensorsRead, SizesAreMultipliedWithCare) {
    const auto shape_refusal = [](const std::string& shape) {
        return refusal(one_tensor(R"("F32")", shape, "[0,0]", ""));
    };
    const std::string big = "tensor 'a': shape: expected whole bytes, fewer than 2^63, got ";
    // 2^32 * 2^32 elements wrap to 0; 2^62 floats are 2^64 bytes and wrap too.
    EXPECT_EQ(shape_refusal("[4294967296,4294967296]"), big + "[4294967296, 4294967296]");
    EXPECT_EQ(shape_refusal("[4611686018427387904]"), big + "[4611686018427387904]");
    EXPECT_EQ(shape_refusal("[4294967296,4294967296,0]"), big + "[4294967296, 4294967296, 0]");
    EXPECT_EQ(shape_refusal("[0,4294967296,4294967296]"), big + "[0, 4294967296, 4294967296]");
    EXPECT_EQ(shape_refusal("[0,4294967296]"), "accepted");
}

TEST(SafetensorsRead, OffsetsFitTheShapeAndTheFile) {
    const auto offsets_refusal = [](const std::string& offsets) {
        return refusal(one_tensor(R"("F32")", "[2]", offsets, "12345678"));
    };
    const std::string digits = "tensor 'a': data_offsets: expected integers from 0 to 2^63 - 1 in plain digits, got ";
    EXPECT_EQ(offsets_refusal("[0,8]"), "accepted");
    EXPECT_EQ(offsets_refusal("8"), "tensor 'a': data_offsets: expected an array, got the number 8");
    EXPECT_EQ(offsets_refusal("[]"), "tensor 'a': data_offsets: expected 2 numbers, got 0");
    EXPECT_EQ(offsets_refusal("[0]"), "tensor 'a': data_offsets: expected 2 numbers, got 1");
    EXPECT_EQ(offsets_refusal("[0,8,8]"), "tensor 'a': data_offsets: expected 2 numbers, got more");
    EXPECT_EQ(offsets_refusal("[-0,8]"), digits + "the negative number 0");
    EXPECT_EQ(offsets_refusal("[0,8.0]"), digits + "the number '8.0'");
    EXPECT_EQ(offsets_refusal("[0,18446744073709551615]"), digits + "the number 18446744073709551615");
    EXPECT_EQ(offsets_refusal("[8,0]"), "tensor 'a': data_offsets: expected begin <= end, got [8, 0]");
    EXPECT_EQ(offsets_refusal("[0,9]"),
              "tensor 'a': data_offsets: expected a range within the 8 bytes of data in the file, got [0, 9]");
    EXPECT_EQ(offsets_refusal("[0,4]"), "tensor 'a': data_offsets: expected 8 bytes for F32 [2], got [0, 4], 4 bytes");
}

TEST(SafetensorsRead, DataIsCoveredOnce) {
    const auto two = [](const std::string& first, const std::string& second, const std::string& data) {
        return header_refusal("{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":" + first +
                                  "},\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":" + second + "}}",
                              data);
    };
    const std::string where = ": data_offsets: expected to begin at byte ";
    EXPECT_EQ(two("[0,2]", "[2,4]", "1234"), "accepted");
    EXPECT_EQ(two("[2,4]", "[0,2]", "1234"), "accepted");
    EXPECT_EQ(two("[0,2]", "[0,2]", "12"), "tensor 'b'" + where + "2, where the data before it ends, got 0 (overlap)");
    EXPECT_EQ(two("[0,2]", "[1,3]", "123"), "tensor 'b'" + where + "2, where the data before it ends, got 1 (overlap)");
    EXPECT_EQ(two("[0,2]", "[3,5]", "12345"), "tensor 'b'" + where + "2, where the data before it ends, got 3 (gap)");
    EXPECT_EQ(two("[1,3]", "[3,5]", "12345"), "tensor 'a'" + where + "0, where the data before it ends, got 1 (gap)");
    EXPECT_EQ(two("[0,2]", "[2,4]", "12345"),
              "expected the data to end with the last tensor at byte 4, got 5 bytes of data");
    EXPECT_EQ(header_refusal("{}", "x"),
              "expected the data to end with the last tensor at byte 0, got 1 bytes of data");
}

TEST(SafetensorsRead, NestingEndsAtTheFirstBracket) {
    const std::string deep(5'000'000, '[');
    EXPECT_EQ(header_refusal("{\"a\":" + deep), "tensor 'a': expected an object, got an array");
    std::string objects = "{\"a\":{\"dtype\":";
    for (int n = 0; n < 1'000'000; ++n) { objects += "{\"a\":"; }
    EXPECT_EQ(header_refusal(objects), "tensor 'a': dtype: expected a string, got an object");
}

TEST(SafetensorsRead, ManyTensorsAreRefusedNotStored) {
    if (testing::test_stride() > 1) { GTEST_SKIP() << "one long case: 60 MB of JSON"; }
    std::string header = "{";
    for (int n = 0; n <= 1'000'000; ++n) {
        header += (n > 0 ? ",\"" : "\"") + std::to_string(n) + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
    }
    EXPECT_EQ(header_refusal(header + "}"), "header: expected at most 1000000 tensors, got more");
}

TEST(SafetensorsRead, MessagesCarryNoControlCharacters) {
    const std::string message = header_refusal("{\"\\u001b[31m\xc3\xa9'\\\\\":1}");
    EXPECT_EQ(message, "tensor '\\x1b[31m\\xc3\\xa9\\x27\\x5c': expected an object, got the number 1");
}

TEST(SafetensorsRead, CutAnywhereIsAnError) {
    const std::string whole = testing::sample_file();
    ASSERT_EQ(refusal(whole), "accepted");
    TemporaryFolder folder;
    for (std::size_t length = 0; length < whole.size(); ++length) {
        const std::string cut = whole.substr(0, length);
        EXPECT_NE(refusal(cut), "accepted") << length;
        testing::write_bytes(folder / "cut.safetensors", cut);
        EXPECT_THROW(SafetensorsFile::open(folder / "cut.safetensors"), FileError) << length;
    }
    EXPECT_NE(refusal(whole + " "), "accepted");
}

TEST(SafetensorsRead, EveryByteOfTheHeaderChangedIsReadOrRefused) {
    // Anything but FileError, or a byte touched outside, fails the test.
    const std::string smallest = assemble(std::string(header_a) + "  ", "12345678");
    std::size_t accepted = 0;
    for (std::size_t at = 0; at < smallest.size() - 8; ++at) {
        for (int change = 1; change < 256; ++change) {
            std::string changed = smallest;
            changed[at] = static_cast<char>(changed[at] ^ change);
            accepted += testing::read_everything(changed) ? 1U : 0U;
        }
    }
    // What is still a file: another name of one ASCII byte (128 less 32 control characters, quote, backslash and the
    // name itself), another type of four bytes (I32, U32).
    EXPECT_EQ(accepted, 93U + 2U);
    const std::string sample = testing::sample_file();
    for (std::size_t at = 0; at < sample.size(); ++at) {
        for (int bit = 0; bit < 8; ++bit) {
            std::string changed = sample;
            changed[at] = static_cast<char>(changed[at] ^ (1 << bit));
            testing::read_everything(changed);
        }
    }
}

TEST(SafetensorsOpen, FilesThatAreNotFiles) {
    TemporaryFolder folder;
    const auto open_refusal = [](const std::filesystem::path& path) {
        return testing::file_error([&] { SafetensorsFile::open(path); });
    };
    EXPECT_EQ(open_refusal(folder / "absent"),
              "[SafetensorsFile] " + (folder / "absent").string() + ": cannot open: No such file or directory");
    EXPECT_EQ(open_refusal(folder.path()), "[SafetensorsFile] " + folder.path().string() + ": expected a regular file");
    ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
    EXPECT_EQ(open_refusal(folder / "pipe"),
              "[SafetensorsFile] " + (folder / "pipe").string() + ": expected a regular file");
    testing::write_bytes(folder / "empty", "");
    EXPECT_EQ(open_refusal(folder / "empty"),
              "[SafetensorsFile] " + (folder / "empty").string() + ": expected at least 8 bytes, got 0");
}

TEST(SafetensorsOpen, ShortenedWhileOpen) {
    TemporaryFolder folder;
    const std::filesystem::path path = folder / "a.safetensors";
    testing::write_bytes(path, assemble(header_a, "12345678"));
    const SafetensorsFile file = SafetensorsFile::open(path);
    std::filesystem::resize_file(path, 66);
    EXPECT_EQ(testing::file_error([&] { file.tensor("a"); }),
              "[SafetensorsFile] " + path.string() + ": shortened while open: it had 70 bytes, now 66 or fewer");
}

TEST(SafetensorsOpen, MovesAndOutlivesItsName) {
    TemporaryFolder folder;
    const std::filesystem::path path = folder / "a.safetensors";
    testing::write_bytes(path, assemble(std::string(header_a) + "  ", "12345678"));
    SafetensorsFile first = SafetensorsFile::open(path);
    const SafetensorsFile second = std::move(first);
    std::filesystem::remove(path);
    EXPECT_EQ(std::memcmp(second.view("a").data(), "12345678", 8), 0);
    EXPECT_EQ(std::memcmp(second.tensor("a").data(), "12345678", 8), 0);
}

}  // namespace
}  // namespace heed
