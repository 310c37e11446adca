#include "print/example.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <fmt/format.h>

#include "print/text.h"

namespace heed::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uintmax_t largest_file = 16 << 20;
constexpr std::size_t longest_label = 12;

std::string read_text(const std::string& path) {
    std::error_code error;
    if (std::filesystem::is_directory(path, error)) { throw UsageError(path + ": expected a JSON file, got a folder"); }
    std::ifstream stream(path, std::ios::binary);
    if (!stream) { throw UsageError(path + ": cannot be opened"); }
    std::string text;
    char block[1 << 16];
    while (stream.read(block, sizeof(block)), stream.gcount() > 0) {
        text.append(block, static_cast<std::size_t>(stream.gcount()));
        if (text.size() > largest_file) { throw UsageError(path + ": expected at most 16 MiB of JSON"); }
    }
    if (stream.bad()) { throw UsageError(path + ": cannot be read"); }
    return text;
}

/// Nested arrays of numbers, all rows alike, `rank` deep.
class NumberReader {
public:
    NumberReader(std::string name, const Json& value, int rank) : name_(std::move(name)) {
        shape_.resize(static_cast<std::size_t>(rank));
        read(value, 0, true, name_);
    }

    Tensor tensor(const Shape& shape) const {
        Tensor result(DType::f64, shape);
        std::copy(numbers_.begin(), numbers_.end(), result.as<double>());
        return result;
    }
    const std::vector<double>& numbers() const { return numbers_; }
    std::int64_t extent(int axis) const { return shape_[static_cast<std::size_t>(axis)]; }

private:
    void read(const Json& value, std::size_t depth, bool first, const std::string& where) {
        if (depth == shape_.size()) {
            if (!value.is_number() && !value.is_boolean()) { wrong(where, "a number", describe(value)); }
            const double number = value.is_boolean() ? (value.get<bool>() ? 1 : 0) : value.get<double>();
            if (!std::isfinite(number)) { wrong(where, "a finite number", describe(value)); }
            numbers_.push_back(number);
            return;
        }
        if (!value.is_array() || value.empty()) {
            wrong(where, fmt::format("numbers in {} levels of brackets", shape_.size()), describe(value));
        }
        const auto size = static_cast<std::int64_t>(value.size());
        if (first) { shape_[depth] = size; }
        if (shape_[depth] != size) {
            wrong(where, fmt::format("{} entries as in the first", shape_[depth]), describe(value));
        }
        for (std::size_t n = 0; n < value.size(); ++n) {
            read(value[n], depth + 1, first && n == 0, fmt::format("{}[{}]", where, n));
        }
    }
    [[noreturn]] static void wrong(const std::string& where, const std::string& expected, const std::string& got) {
        throw UsageError(fmt::format("{}: expected {}, got {}", where, expected, got));
    }

    std::string name_;
    std::vector<std::int64_t> shape_;
    std::vector<double> numbers_;
};

Tensor read_tokens(const std::string& name, const Json& value) {
    const bool batch =
        value.is_array() && !value.empty() && value[0].is_array() && !value[0].empty() && value[0][0].is_array();
    const NumberReader x(name, value, batch ? 3 : 2);
    return batch ? x.tensor({x.extent(0), x.extent(1), x.extent(2)}) : x.tensor({1, x.extent(0), x.extent(1)});
}

Tensor read_projection(const std::string& name, const Json& value) {
    if (value.is_null() || value == "identity") { return {}; }
    const NumberReader w(name, value, 2);
    return w.tensor({w.extent(0), w.extent(1)});
}

std::int64_t read_count(const std::string& name, const Json& value) {
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() < 1 || value.get<std::uint64_t>() > 65536) {
        throw UsageError(fmt::format("{}: expected a whole number from 1 to 65536, got {}", name, describe(value)));
    }
    return value.get<std::int64_t>();
}

NumberReader read_square(const std::string& name, const Json& value, std::int64_t tokens) {
    NumberReader square(name, value, 2);
    if (square.extent(0) != tokens || square.extent(1) != tokens) {
        throw UsageError(fmt::format("{}: expected {} x {} numbers for {} tokens, got {} x {}", name, tokens, tokens,
                                     tokens, square.extent(0), square.extent(1)));
    }
    return square;
}

std::string token_label(const std::string& text) {
    std::string result = printable(text);
    if (width_of(result) <= longest_label) { return result; }
    std::size_t end = 0;
    for (std::size_t width = 0; width < longest_label - 1; ++width) {
        do { ++end; } while ((static_cast<std::uint8_t>(result[end]) & 0xC0) == 0x80);
    }
    return result.substr(0, end) + "~";
}

}  // namespace

std::vector<std::string> token_labels(std::int64_t count) {
    std::vector<std::string> labels;
    for (std::int64_t n = 1; n <= count; ++n) { labels.push_back(fmt::format("x{}", n)); }
    return labels;
}

Example read_example(const std::string& path) {
    const Json json = parse_json(path, read_text(path));
    if (!json.is_object()) { throw UsageError(path + ": expected a JSON object, got " + describe(json)); }
    if (!json.contains("x")) { throw UsageError(path + ": expected a key x with the tokens, got none"); }
    Example example;
    example.input.x = read_tokens(path + ": x", json["x"]);
    const std::int64_t tokens = example.input.x.shape()[1];
    example.tokens = token_labels(tokens);
    for (const auto& [key, value] : json.items()) {
        const std::string name = path + ": " + key;
        if (key == "x") { continue; }
        if (key == "title") {
            if (!value.is_string()) { throw UsageError(name + ": expected a string, got " + describe(value)); }
            example.title = printable(value.get<std::string>());
        } else if (key == "tokens") {
            const bool strings = value.is_array() &&
                                 std::all_of(value.begin(), value.end(), [](const Json& t) { return t.is_string(); });
            if (!strings || static_cast<std::int64_t>(value.size()) != tokens) {
                throw UsageError(
                    fmt::format("{}: expected {} strings, one a token, got {}", name, tokens, describe(value)));
            }
            for (std::size_t n = 0; n < value.size(); ++n) {
                example.tokens[n] = token_label(value[n].get<std::string>());
            }
        } else if (key == "wq") {
            example.input.wq = read_projection(name, value);
        } else if (key == "wk") {
            example.input.wk = read_projection(name, value);
        } else if (key == "wv") {
            example.input.wv = read_projection(name, value);
        } else if (key == "wo") {
            example.input.wo = read_projection(name, value);
        } else if (key == "heads") {
            example.input.heads = read_count(name, value);
        } else if (key == "kv_heads") {
            example.input.kv_heads = read_count(name, value);
        } else if (key == "mask" && value.is_array()) {
            const NumberReader mask = read_square(name, value, tokens);
            example.mask = Tensor(DType::u8, {1, 1, tokens, tokens});
            for (std::size_t n = 0; n < mask.numbers().size(); ++n) {
                example.mask.as<std::uint8_t>()[n] = mask.numbers()[n] != 0 ? 1 : 0;
            }
        } else if (key == "bias" && value.is_array()) {
            example.bias = read_square(name, value, tokens).tensor({1, 1, tokens, tokens});
        } else if (key == "mask" || key == "bias") {
            throw UsageError(
                fmt::format("{}: expected a {} x {} array, got {}", name, tokens, tokens, describe(value)));
        } else if (key == "lengths" || key == "sinks" || !read_setting(path, key, value, example.settings)) {
            throw UsageError(
                fmt::format("{}: unknown key '{}'; expected title, tokens, x, wq, wk, wv, wo, heads, "
                            "kv_heads, scale, softcap, bias, alibi, causal, align, window, mask, dropout, "
                            "seed or offset",
                            path, key));
        }
    }
    return example;
}

}  // namespace heed::cli
