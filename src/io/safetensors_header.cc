#include "io/safetensors_header.h"

#include "io/file.h"
#include "io/foreign_types.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

namespace heed::safetensors {
namespace {

constexpr std::array<std::pair<std::string_view, DType>, 13> file_names{{{"F64", DType::f64},
                                                                         {"F32", DType::f32},
                                                                         {"F16", DType::f16},
                                                                         {"BF16", DType::bf16},
                                                                         {"I64", DType::i64},
                                                                         {"I32", DType::i32},
                                                                         {"I16", DType::i16},
                                                                         {"I8", DType::i8},
                                                                         {"U64", DType::u64},
                                                                         {"U32", DType::u32},
                                                                         {"U16", DType::u16},
                                                                         {"U8", DType::u8},
                                                                         {"BOOL", DType::boolean}}};

/// Receives the JSON as events and allows, at each place, only what the format has there. Nothing nests deeper than
/// an array in an entry, so hostile nesting ends at its first bracket. No document is built.
class HeaderEvents {
public:
    HeaderEvents(Header& header, std::uint64_t data_bytes, const std::string& context)
        : header_(header), data_bytes_(data_bytes), context_(context) {}

    // What nlohmann::json::sax_parse calls. Errors leave by exception, so every event returns true.
    bool null() { unexpected("null"); }
    bool boolean(bool value) { unexpected(value ? "true" : "false"); }
    /// Called for numbers with a minus sign only, -0 among them.
    bool number_integer(std::int64_t value) { unexpected("the negative number " + std::to_string(value)); }
    bool number_unsigned(std::uint64_t value);
    /// Fractions, exponents, and integers of more than 64 bits.
    bool number_float(double, const std::string& text) { unexpected("the number " + in_quotes(text)); }
    bool string(std::string& value);
    bool binary(std::vector<std::uint8_t>&) { unexpected("binary data"); }
    bool start_object(std::size_t);
    bool key(std::string& value);
    bool end_object();
    bool start_array(std::size_t);
    bool end_array();
    bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception& error);

private:
    /// What has to come next.
    enum class Place {
        document,
        name,
        entry,
        field,
        dtype,
        shape,
        extent,
        offsets,
        offset,
        metadata,
        metadata_key,
        metadata_value,
        end
    };

    [[noreturn]] void fail(const std::string& what) const { throw FileError(context_ + what); }
    [[noreturn]] void fail_tensor(const std::string& what) const { fail("tensor " + in_quotes(name_) + ": " + what); }
    [[noreturn]] void unexpected(const std::string& what) const;
    std::string expectation() const;
    void begin_name(std::string& value);
    void begin_field(const std::string& value);
    void finish_entry();

    Header& header_;
    std::uint64_t data_bytes_;
    const std::string& context_;

    Place place_ = Place::document;
    std::string name_;
    std::string metadata_name_;
    bool has_metadata_ = false;
    // The entry being read.
    bool has_dtype_ = false;
    bool has_shape_ = false;
    bool has_offsets_ = false;
    DType dtype_ = DType::f32;
    const ForeignType* foreign_ = nullptr;
    std::vector<std::int64_t> shape_;
    std::vector<std::uint64_t> offsets_;
};

std::string HeaderEvents::expectation() const {
    switch (place_) {
        case Place::document: return "header: expected an object";
        case Place::entry: return "tensor " + in_quotes(name_) + ": expected an object";
        case Place::dtype: return "tensor " + in_quotes(name_) + ": dtype: expected a string";
        case Place::shape: return "tensor " + in_quotes(name_) + ": shape: expected an array";
        case Place::extent:
            return "tensor " + in_quotes(name_) + ": shape: expected integers from 0 to 2^63 - 1 in plain digits";
        case Place::offsets: return "tensor " + in_quotes(name_) + ": data_offsets: expected an array";
        case Place::offset:
            return "tensor " + in_quotes(name_) +
                   ": data_offsets: expected integers from 0 to 2^63 - 1 in plain digits";
        case Place::metadata: return "__metadata__: expected an object";
        case Place::metadata_value: return "__metadata__: " + in_quotes(metadata_name_) + ": expected a string";
        // Between keys the parser itself refuses anything else.
        case Place::name:
        case Place::field:
        case Place::metadata_key:
        case Place::end: break;
    }
    return "header: expected a key";
}

void HeaderEvents::unexpected(const std::string& what) const { fail(expectation() + ", got " + what); }

bool HeaderEvents::number_unsigned(std::uint64_t value) {
    const bool fits = value <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    if (!fits || (place_ != Place::extent && place_ != Place::offset)) {
        unexpected("the number " + std::to_string(value));
    }
    if (place_ == Place::extent) {
        if (shape_.size() == Shape::max_rank) {
            fail_tensor("shape: expected at most " + std::to_string(Shape::max_rank) + " axes, got more");
        }
        shape_.push_back(static_cast<std::int64_t>(value));
    } else {
        if (offsets_.size() == 2) { fail_tensor("data_offsets: expected 2 numbers, got more"); }
        offsets_.push_back(value);
    }
    return true;
}

bool HeaderEvents::string(std::string& value) {
    if (place_ == Place::dtype) {
        foreign_ = foreign_type(value);
        const std::optional<DType> dtype = foreign_ == nullptr ? dtype_from_file_name(value) : DType::f32;
        if (!dtype) {
            fail_tensor("dtype: expected F64, F32, F16, BF16, I64, I32, I16, I8, U64, U32, U16, U8 or BOOL, got " +
                        in_quotes(value));
        }
        dtype_ = *dtype;
        place_ = Place::field;
    } else if (place_ == Place::metadata_value) {
        header_.metadata.emplace(std::move(metadata_name_), std::move(value));
        place_ = Place::metadata_key;
    } else {
        unexpected("the string " + in_quotes(value));
    }
    return true;
}

bool HeaderEvents::start_object(std::size_t) {
    switch (place_) {
        case Place::document: place_ = Place::name; break;
        case Place::metadata: place_ = Place::metadata_key; break;
        case Place::entry:
            place_ = Place::field;
            has_dtype_ = has_shape_ = has_offsets_ = false;
            shape_.clear();
            offsets_.clear();
            break;
        default: unexpected("an object");
    }
    return true;
}

bool HeaderEvents::key(std::string& value) {
    if (place_ == Place::name) {
        begin_name(value);
    } else if (place_ == Place::field) {
        begin_field(value);
    } else {
        if (header_.metadata.contains(value)) { fail("__metadata__: " + in_quotes(value) + " is there twice"); }
        if (header_.metadata.size() == max_entries) {
            fail("__metadata__: expected at most " + std::to_string(max_entries) + " keys, got more");
        }
        metadata_name_ = std::move(value);
        place_ = Place::metadata_value;
    }
    return true;
}

void HeaderEvents::begin_name(std::string& value) {
    if (value == metadata_key) {
        if (std::exchange(has_metadata_, true)) { fail("__metadata__ is there twice"); }
        place_ = Place::metadata;
        return;
    }
    if (value.empty() || value.size() > max_name_bytes) {
        fail("tensor " + in_quotes(value) + ": expected a name of 1 to " + std::to_string(max_name_bytes) +
             " bytes, got " + std::to_string(value.size()));
    }
    if (header_.entries.contains(value)) { fail("tensor " + in_quotes(value) + " is there twice"); }
    if (header_.names.size() == max_entries) {
        fail("header: expected at most " + std::to_string(max_entries) + " tensors, got more");
    }
    name_ = std::move(value);
    place_ = Place::entry;
}

void HeaderEvents::begin_field(const std::string& value) {
    const auto once = [&](bool& seen, Place place) {
        if (std::exchange(seen, true)) { fail_tensor(value + " is there twice"); }
        place_ = place;
    };
    if (value == "dtype") {
        once(has_dtype_, Place::dtype);
    } else if (value == "shape") {
        once(has_shape_, Place::shape);
    } else if (value == "data_offsets") {
        once(has_offsets_, Place::offsets);
    } else {
        fail_tensor("expected the keys dtype, shape and data_offsets only, got " + in_quotes(value));
    }
}

bool HeaderEvents::end_object() {
    if (place_ == Place::field) { finish_entry(); }
    place_ = place_ == Place::name ? Place::end : Place::name;
    return true;
}

bool HeaderEvents::start_array(std::size_t) {
    switch (place_) {
        case Place::shape: place_ = Place::extent; break;
        case Place::offsets: place_ = Place::offset; break;
        default: unexpected("an array");
    }
    return true;
}

bool HeaderEvents::end_array() {
    if (place_ == Place::offset && offsets_.size() != 2) {
        fail_tensor("data_offsets: expected 2 numbers, got " + std::to_string(offsets_.size()));
    }
    place_ = Place::field;
    return true;
}

bool HeaderEvents::parse_error(std::size_t position, const std::string&, const nlohmann::json::exception& error) {
    // "[json.exception.parse_error.101] parse error at line 1, column 5: syntax error while parsing ..."
    std::string_view text = error.what();
    if (const std::size_t colon = text.find(": "); colon != std::string_view::npos) { text.remove_prefix(colon + 2); }
    fail("header: not valid JSON at byte " + std::to_string(position) + ": " + in_quotes(text));
}

void HeaderEvents::finish_entry() {
    if (!has_dtype_) { fail_tensor("dtype is missing"); }
    if (!has_shape_) { fail_tensor("shape is missing"); }
    if (!has_offsets_) { fail_tensor("data_offsets is missing"); }
    const std::string_view file_type = foreign_ == nullptr ? file_name_of(dtype_) : foreign_->name;
    const SafetensorsFile::Entry entry{dtype_, Shape(shape_), offsets_[0], offsets_[1], file_type};
    const std::string range = "[" + std::to_string(entry.begin) + ", " + std::to_string(entry.end) + "]";
    if (entry.begin > entry.end) { fail_tensor("data_offsets: expected begin <= end, got " + range); }
    if (entry.end > data_bytes_) {
        fail_tensor("data_offsets: expected a range within the " + std::to_string(data_bytes_) +
                    " bytes of data in the file, got " + range);
    }
    const std::optional<std::uint64_t> as_read = tensor_bytes(entry.dtype, entry.shape);
    const std::optional<std::uint64_t> bytes = foreign_ == nullptr ? as_read : bytes_of(*foreign_, entry.shape);
    if (!bytes || !as_read) {
        fail_tensor("shape: expected whole bytes, fewer than 2^63, got " + to_string(entry.shape));
    }
    if (entry.end - entry.begin != *bytes) {
        fail_tensor("data_offsets: expected " + std::to_string(*bytes) + " bytes for " + std::string(file_type) + " " +
                    to_string(entry.shape) + ", got " + range + ", " + std::to_string(entry.end - entry.begin) +
                    " bytes");
    }
    header_.names.push_back(name_);
    header_.entries.emplace(std::move(name_), entry);
}

/// No gaps, no overlaps, nothing after the last tensor: every byte of the file means exactly one thing.
void check_coverage(const Header& header, std::uint64_t data_bytes, const std::string& context) {
    std::vector<const decltype(header.entries)::value_type*> by_offset;
    by_offset.reserve(header.entries.size());
    for (const auto& item : header.entries) { by_offset.push_back(&item); }
    std::sort(by_offset.begin(), by_offset.end(), [](const auto* a, const auto* b) {
        return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
    });
    std::uint64_t end = 0;
    for (const auto* item : by_offset) {
        const auto& [name, entry] = *item;
        if (entry.begin != end) {
            throw FileError(context + "tensor " + in_quotes(name) + ": data_offsets: expected to begin at byte " +
                            std::to_string(end) + ", where the data before it ends, got " +
                            std::to_string(entry.begin) + (entry.begin < end ? " (overlap)" : " (gap)"));
        }
        end = entry.end;
    }
    if (end != data_bytes) {
        throw FileError(context + "expected the data to end with the last tensor at byte " + std::to_string(end) +
                        ", got " + std::to_string(data_bytes) + " bytes of data");
    }
}

}  // namespace

std::string_view file_name_of(DType dtype) {
    const auto* found = std::find_if(file_names.begin(), file_names.end(),
                                     [&](const auto& candidate) { return candidate.second == dtype; });
    return found == file_names.end() ? std::string_view("unknown") : found->first;
}

std::optional<DType> dtype_from_file_name(std::string_view name) {
    const auto* found = std::find_if(file_names.begin(), file_names.end(),
                                     [&](const auto& candidate) { return candidate.first == name; });
    if (found == file_names.end()) { return std::nullopt; }
    return found->second;
}

std::optional<std::uint64_t> tensor_bytes(DType dtype, const Shape& shape) {
    auto bytes = static_cast<std::int64_t>(size_of(dtype));
    bool empty = false;
    for (const std::int64_t extent : shape) {
        empty = empty || extent == 0;
        if (__builtin_mul_overflow(bytes, std::max<std::int64_t>(extent, 1), &bytes)) { return std::nullopt; }
    }
    return empty ? 0 : static_cast<std::uint64_t>(bytes);
}

Header parse_header(std::string_view json, std::uint64_t data_bytes, const std::string& context) {
    if (!json.starts_with('{')) {
        throw FileError(context + "header: expected to begin with '{', got " +
                        (json.empty() ? "nothing" : in_quotes(json.substr(0, 1))));
    }
    // To the parser a zero byte is the end of the input: whatever stands behind it would go unchecked.
    if (const std::size_t zero = json.find('\0'); zero != std::string_view::npos) {
        throw FileError(context + "header: expected text, got a zero byte at byte " + std::to_string(zero));
    }
    Header header;
    HeaderEvents events(header, data_bytes, context);
    nlohmann::json::sax_parse(json.begin(), json.end(), &events);
    // The parser allows any white space behind the object.
    if (const std::size_t last = json.find_last_not_of(' '); json[last] != '}') {
        throw FileError(context + "header: expected only spaces behind the JSON, got " +
                        in_quotes(json.substr(last, 1)) + " at byte " + std::to_string(last));
    }
    check_coverage(header, data_bytes, context);
    return header;
}

}  // namespace heed::safetensors
