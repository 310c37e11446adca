#include <heed/gguf.h>

#include <cstring>

#include "io/file.h"
#include "io/gguf_blocks.h"

namespace heed {

struct GgufFile::Contents {
    std::unique_ptr<InputFile> file{};
    std::span<const std::byte> bytes{};
    std::string label{};
    std::map<std::string, GgufValue> metadata{};
    std::vector<std::string> names{};
    std::map<std::string, Entry, std::less<>> entries{};
};

namespace {

/// Reads from front to back; a count is believed only as far as bytes are left for it.
class GgufReader {
public:
    GgufReader(std::span<const std::byte> bytes, const std::string& label) : bytes_(bytes), label_(label) {}

    [[noreturn]] void fail(const std::string& expected, const std::string& got) const {
        throw FileError("[GgufFile] " + label_ + ": expected " + expected + " at byte " + std::to_string(at_) +
                        ", got " + got);
    }
    std::uint64_t at() const { return at_; }
    std::uint64_t left() const { return bytes_.size() - at_; }

    template <class T>
    T number() {
        if (left() < sizeof(T)) { fail(std::to_string(sizeof(T)) + " bytes", "the end"); }
        T value;
        std::memcpy(&value, bytes_.data() + at_, sizeof(T));
        at_ += sizeof(T);
        return value;
    }
    std::string text() {
        const auto size = number<std::uint64_t>();
        if (size > left()) { fail("a string of at most " + std::to_string(left()) + " bytes", std::to_string(size)); }
        std::string result(reinterpret_cast<const char*>(bytes_.data() + at_), static_cast<std::size_t>(size));
        at_ += size;
        return result;
    }

    GgufValue value(std::uint32_t type) {
        switch (type) {
            case 7: return number<std::uint8_t>() != 0;
            case 8: return text();
            case 9: return list();
            case 6:
            case 12: return real(type);
            default: return integer(type);
        }
    }

private:
    std::int64_t integer(std::uint32_t type) {
        switch (type) {
            case 0: return number<std::uint8_t>();
            case 1: return number<std::int8_t>();
            case 2: return number<std::uint16_t>();
            case 3: return number<std::int16_t>();
            case 4: return number<std::uint32_t>();
            case 5: return number<std::int32_t>();
            case 7: return number<std::uint8_t>();
            case 10: {
                const auto big = number<std::uint64_t>();
                if (big > static_cast<std::uint64_t>(INT64_MAX)) { fail("a number below 2^63", std::to_string(big)); }
                return static_cast<std::int64_t>(big);
            }
            case 11: return number<std::int64_t>();
            default: fail("a type of value from 0 to 12", std::to_string(type));
        }
    }
    double real(std::uint32_t type) { return type == 6 ? static_cast<double>(number<float>()) : number<double>(); }

    GgufValue list() {
        const auto type = number<std::uint32_t>();
        const auto count = number<std::uint64_t>();
        if (type == 9) { fail("a list of plain values", "a list of lists"); }
        const std::uint64_t least = type == 8 || type >= 10  ? 8
                                    : type >= 4 && type <= 6 ? 4
                                    : type == 2 || type == 3 ? 2
                                                             : 1;
        if (count > left() / least) { fail("a list that the file has room for", std::to_string(count) + " values"); }
        if (type == 8) {
            std::vector<std::string> texts;
            for (std::uint64_t n = 0; n < count; ++n) { texts.push_back(text()); }
            return texts;
        }
        if (type == 6 || type == 12) {
            std::vector<double> numbers;
            for (std::uint64_t n = 0; n < count; ++n) { numbers.push_back(real(type)); }
            return numbers;
        }
        std::vector<std::int64_t> numbers;
        for (std::uint64_t n = 0; n < count; ++n) { numbers.push_back(integer(type)); }
        return numbers;
    }

    std::span<const std::byte> bytes_;
    const std::string& label_;
    std::uint64_t at_ = 0;
};

GgufLayout layout_of(const GgufReader& reader, std::uint32_t type) {
    const auto layout = gguf_layout(type);
    if (!layout) {
        reader.fail("a tensor of F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K, IQ4_NL, IQ4_XS or MXFP4",
                    gguf_type_name(type));
    }
    return *layout;
}

GgufFile::Entry read_entry(GgufReader& reader) {
    constexpr std::uint32_t most_axes = 4;
    const auto axes = reader.number<std::uint32_t>();
    if (axes < 1 || axes > most_axes) { reader.fail("1 to 4 axes", std::to_string(axes)); }
    std::uint64_t extents[most_axes] = {}, elements = 1;
    for (std::uint32_t n = 0; n < axes; ++n) {
        extents[n] = reader.number<std::uint64_t>();
        constexpr std::uint64_t most = std::uint64_t{1} << 40U;
        if (extents[n] < 1 || extents[n] > most || elements > most / extents[n]) {
            reader.fail("at most 2^40 numbers", "more, or none");
        }
        elements *= extents[n];
    }
    const auto type = reader.number<std::uint32_t>();
    const GgufLayout layout = layout_of(reader, type);
    if (extents[0] % layout.numbers != 0) {
        reader.fail("rows of a multiple of " + std::to_string(layout.numbers), std::to_string(extents[0]));
    }
    GgufFile::Entry entry;
    entry.type = static_cast<GgufType>(type);
    std::vector<std::int64_t> shape;
    for (std::uint32_t n = axes; n > 0; --n) { shape.push_back(static_cast<std::int64_t>(extents[n - 1])); }
    entry.shape = shape.size() == 1   ? Shape{shape[0]}
                  : shape.size() == 2 ? Shape{shape[0], shape[1]}
                  : shape.size() == 3 ? Shape{shape[0], shape[1], shape[2]}
                                      : Shape{shape[0], shape[1], shape[2], shape[3]};
    entry.begin = reader.number<std::uint64_t>();
    entry.end = elements / layout.numbers * layout.bytes;  // the size, until the data's place is known
    return entry;
}

}  // namespace

GgufFile::GgufFile(std::unique_ptr<Contents> contents) : contents_(std::move(contents)) {
    Contents& c = *contents_;
    GgufReader reader(c.bytes, c.label);
    if (reader.number<std::uint32_t>() != 0x46554747U) { reader.fail("a GGUF file", "another kind"); }
    const auto version = reader.number<std::uint32_t>();
    if (version != 2 && version != 3) { reader.fail("version 2 or 3", std::to_string(version)); }
    const auto tensors = reader.number<std::uint64_t>(), values = reader.number<std::uint64_t>();
    constexpr std::uint64_t least_value = 13, least_tensor = 32;
    if (values > reader.left() / least_value || tensors > reader.left() / least_tensor) {
        reader.fail("counts that the file has room for", "more");
    }
    for (std::uint64_t n = 0; n < values; ++n) {
        std::string key = reader.text();
        const auto type = reader.number<std::uint32_t>();
        if (!c.metadata.emplace(key, reader.value(type)).second) {
            reader.fail("every key once", in_quotes(key) + " twice");
        }
    }
    for (std::uint64_t n = 0; n < tensors; ++n) {
        std::string name = reader.text();
        const Entry entry = read_entry(reader);
        if (!c.entries.emplace(name, entry).second) { reader.fail("every tensor once", in_quotes(name) + " twice"); }
        c.names.push_back(std::move(name));
    }
    std::uint64_t alignment = 32;
    if (const auto found = c.metadata.find("general.alignment"); found != c.metadata.end()) {
        const auto* given = std::get_if<std::int64_t>(&found->second);
        constexpr std::int64_t most = 1 << 20;
        if (given == nullptr || *given < 1 || *given > most) { reader.fail("an alignment of 1 to 2^20", "another"); }
        alignment = static_cast<std::uint64_t>(*given);
    }
    const std::uint64_t data = (reader.at() + alignment - 1) / alignment * alignment;
    for (auto& [name, entry] : c.entries) {
        const std::uint64_t size = entry.end, room = c.bytes.size() > data ? c.bytes.size() - data : 0;
        if (entry.begin > room || size > room - entry.begin) {
            reader.fail("the data of " + in_quotes(name) + " inside the file", "it beyond the end");
        }
        entry.begin += data;
        entry.end = entry.begin + size;
    }
}

GgufFile GgufFile::open(const std::filesystem::path& path) {
    auto contents = std::make_unique<Contents>();
    contents->file = std::make_unique<InputFile>("GgufFile", path);
    contents->bytes = contents->file->map();
    contents->label = path.string();
    return GgufFile(std::move(contents));
}

GgufFile GgufFile::from_memory(std::span<const std::byte> bytes, std::string label) {
    auto contents = std::make_unique<Contents>();
    contents->bytes = bytes;
    contents->label = std::move(label);
    return GgufFile(std::move(contents));
}

GgufFile::GgufFile(GgufFile&&) noexcept = default;
GgufFile& GgufFile::operator=(GgufFile&&) noexcept = default;
GgufFile::~GgufFile() = default;

const std::vector<std::string>& GgufFile::names() const { return contents_->names; }
bool GgufFile::contains(std::string_view name) const {
    return contents_->entries.find(name) != contents_->entries.end();
}
const std::map<std::string, GgufValue>& GgufFile::metadata() const { return contents_->metadata; }

const GgufFile::Entry& GgufFile::entry(std::string_view name) const {
    const auto found = contents_->entries.find(name);
    if (found == contents_->entries.end()) {
        throw FileError("[GgufFile] " + contents_->label + ": expected a tensor " + in_quotes(name) + ", got none");
    }
    return found->second;
}

Tensor GgufFile::tensor(std::string_view name) const {
    const Entry& e = entry(name);
    const std::byte* bytes = contents_->bytes.data() + e.begin;
    const DType dtype = e.type == GgufType::f16 ? DType::f16 : e.type == GgufType::bf16 ? DType::bf16 : DType::f32;
    Tensor result = Tensor::uninitialised(dtype, e.shape);
    const GgufLayout layout = *gguf_layout(static_cast<std::uint32_t>(e.type));
    if (layout.numbers == 1) {
        std::memcpy(result.data(), bytes, result.bytes());
    } else {
        unpack_gguf(e.type, bytes, result.as<float>(), e.shape.elements() / static_cast<std::int64_t>(layout.numbers));
    }
    return result;
}

}  // namespace heed
