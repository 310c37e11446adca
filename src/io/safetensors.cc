#include <heed/safetensors.h>

#include "base/refuse.h"
#include "io/file.h"
#include "io/foreign_types.h"
#include "io/safetensors_header.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <memory>
#include <utility>

namespace heed {

struct SafetensorsFile::Contents {
    std::string context;
    std::unique_ptr<InputFile> file;  // absent for a file in memory
    std::span<const std::byte> data;  // what follows the header
    std::uint64_t data_offset = 0;
    safetensors::Header header;

    const std::byte* start_of(const Entry& entry) const { return data.data() + entry.begin; }
    bool is_aligned(const Entry& entry) const {
        return safetensors::foreign_type(entry.file_type) == nullptr &&
               std::bit_cast<std::uintptr_t>(start_of(entry)) % size_of(entry.dtype) == 0;
    }
};

namespace {

using safetensors::prefix_bytes;

/// Checks the first eight bytes; the header ends at the returned offset plus 8.
std::uint64_t header_length(std::span<const std::byte> prefix, std::uint64_t file_bytes, const std::string& context) {
    std::uint64_t length = 0;
    std::memcpy(&length, prefix.data(), prefix_bytes);
    if (length > safetensors::max_header_bytes) {
        throw FileError(context + "header length: expected at most " + std::to_string(safetensors::max_header_bytes) +
                        " bytes, got " + std::to_string(length));
    }
    if (length > file_bytes - prefix_bytes) {
        throw FileError(context + "header length: expected at most the " + std::to_string(file_bytes - prefix_bytes) +
                        " bytes that follow in the file, got " + std::to_string(length));
    }
    return length;
}

void check_file_length(std::uint64_t bytes, const std::string& context) {
    if (bytes < prefix_bytes) { throw FileError(context + "expected at least 8 bytes, got " + std::to_string(bytes)); }
}

[[noreturn]] void refuse_type(const std::string& context, std::string_view name, const SafetensorsFile::Entry& entry) {
    throw FileError(context + "tensor " + in_quotes(name) + ": expected a type that heed can read, got " +
                    std::string(entry.file_type));
}

/// Bytes at the end of `numbers` as the numbers they stand for, in place: each is read before its place is written.
void expand(std::span<float> numbers, std::span<const std::byte> bytes, const safetensors::ForeignType& type) {
    std::array<float, 256> table;
    for (std::size_t n = 0; n < table.size(); ++n) { table[n] = as_float(static_cast<std::uint8_t>(n), type); }
    for (std::size_t n = 0; n < numbers.size(); ++n) { numbers[n] = table[std::to_integer<std::size_t>(bytes[n])]; }
}

std::string_view as_text(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void check_booleans(std::span<const std::byte> bytes, std::string_view name, const std::string& context) {
    const auto wrong = std::find_if(bytes.begin(), bytes.end(), [](std::byte byte) { return byte > std::byte{1}; });
    if (wrong != bytes.end()) {
        throw FileError(context + "tensor " + in_quotes(name) + ": BOOL: expected 0 or 1, got " +
                        std::to_string(std::to_integer<int>(*wrong)) + " at element " +
                        std::to_string(wrong - bytes.begin()));
    }
}

}  // namespace

SafetensorsFile::SafetensorsFile(std::unique_ptr<Contents> contents) : contents_(std::move(contents)) {}
SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;
SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&&) noexcept = default;
SafetensorsFile::~SafetensorsFile() = default;

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& path) {
    auto contents = std::make_unique<Contents>();
    contents->context = "[SafetensorsFile] " + path.string() + ": ";
    contents->file = std::make_unique<InputFile>("SafetensorsFile", path);
    InputFile& file = *contents->file;
    check_file_length(file.size(), contents->context);
    // The header is read, not mapped: what is checked cannot change between two looks at it.
    std::vector<std::byte> header(prefix_bytes);
    file.read(0, header);
    header.resize(header_length(header, file.size(), contents->context));
    file.read(prefix_bytes, header);
    contents->data_offset = prefix_bytes + header.size();
    contents->header =
        safetensors::parse_header(as_text(header), file.size() - contents->data_offset, contents->context);
    contents->data = file.map().subspan(contents->data_offset);
    return SafetensorsFile(std::move(contents));
}

SafetensorsFile SafetensorsFile::from_memory(std::span<const std::byte> bytes, std::string label) {
    auto contents = std::make_unique<Contents>();
    contents->context = "[SafetensorsFile] " + std::move(label) + ": ";
    check_file_length(bytes.size(), contents->context);
    const std::uint64_t length = header_length(bytes.first(prefix_bytes), bytes.size(), contents->context);
    contents->data_offset = prefix_bytes + length;
    contents->data = bytes.subspan(contents->data_offset);
    contents->header = safetensors::parse_header(as_text(bytes.subspan(prefix_bytes, length)), contents->data.size(),
                                                 contents->context);
    return SafetensorsFile(std::move(contents));
}

const std::vector<std::string>& SafetensorsFile::names() const { return contents_->header.names; }

const SafetensorsMetadata& SafetensorsFile::metadata() const { return contents_->header.metadata; }

bool SafetensorsFile::contains(std::string_view name) const { return contents_->header.entries.contains(name); }

const SafetensorsFile::Entry& SafetensorsFile::entry(std::string_view name) const {
    const auto found = contents_->header.entries.find(name);
    if (found != contents_->header.entries.end()) { return found->second; }
    constexpr std::size_t shown = 10;
    std::string text =
        contents_->context + "no tensor " + in_quotes(name) + " among its " + std::to_string(names().size());
    for (std::size_t n = 0; n < std::min(names().size(), shown); ++n) {
        text += (n == 0 ? ": " : ", ") + in_quotes(names()[n]);
    }
    throw FileError(text + (names().size() > shown ? ", ..." : ""));
}

bool SafetensorsFile::is_aligned(std::string_view name) const { return contents_->is_aligned(entry(name)); }

Tensor SafetensorsFile::tensor(std::string_view name) const {
    const Entry& found = entry(name);
    if (const safetensors::ForeignType* foreign = safetensors::foreign_type(found.file_type);
        foreign != nullptr && !is_readable(*foreign)) {
        refuse_type(contents_->context, name, found);
    }
    Tensor tensor = Tensor::uninitialised(found.dtype, found.shape);
    read(name, tensor);
    return tensor;
}

void SafetensorsFile::read(std::string_view name, const MutableView& out) const {
    const Entry& found = entry(name);
    if (!out || out.dtype() != found.dtype || out.shape() != found.shape || out.strides() != found.shape.row_major() ||
        out.device() != Device()) {
        refuse("SafetensorsFile::read", "out",
               "row-major memory of " + std::string(name_of(found.dtype)) + " " + to_string(found.shape),
               (out ? std::string(name_of(out.dtype())) + " " + to_string(out.shape()) : "none"));
    }
    const safetensors::ForeignType* foreign = safetensors::foreign_type(found.file_type);
    if (foreign != nullptr && !is_readable(*foreign)) { refuse_type(contents_->context, name, found); }
    const auto all = static_cast<std::size_t>(found.shape.elements()) * size_of(found.dtype);
    // Numbers of 8 bits are read into the last quarter of their place and spread from there.
    const std::size_t stored = foreign == nullptr ? all : all / sizeof(float);
    const std::span bytes(static_cast<std::byte*>(out.data()) + (all - stored), stored);
    if (contents_->file) {
        contents_->file->read(contents_->data_offset + found.begin, bytes);
    } else if (!bytes.empty()) {
        std::memcpy(bytes.data(), contents_->start_of(found), bytes.size());
    }
    if (found.dtype == DType::boolean) { check_booleans(bytes, name, contents_->context); }
    if (foreign != nullptr) { expand({out.as<float>(), stored}, bytes, *foreign); }
}

View SafetensorsFile::view(std::string_view name) const {
    const Entry& found = entry(name);
    if (const safetensors::ForeignType* foreign = safetensors::foreign_type(found.file_type)) {
        if (!is_readable(*foreign)) { refuse_type(contents_->context, name, found); }
        throw FileError(contents_->context + "tensor " + in_quotes(name) +
                        ": expected numbers that can be used as they lie in the file, got " +
                        std::string(found.file_type) + "; tensor() converts them");
    }
    if (!contents_->is_aligned(found)) {
        throw FileError(contents_->context + "tensor " + in_quotes(name) + ": expected data aligned to " +
                        std::to_string(size_of(found.dtype)) + " bytes, got it at byte " +
                        std::to_string(contents_->data_offset + found.begin) + "; tensor() copies it");
    }
    if (found.dtype == DType::boolean) {
        check_booleans(contents_->data.subspan(found.begin, found.end - found.begin), name, contents_->context);
    }
    return View(found.dtype, contents_->start_of(found), found.shape);
}

}  // namespace heed
