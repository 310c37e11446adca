#include <heed/safetensors.h>

#include "base/refuse.h"
#include "io/file.h"
#include "io/safetensors_header.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>

namespace heed {
namespace {

using safetensors::max_entries;
using safetensors::max_header_bytes;
using safetensors::max_name_bytes;
using safetensors::metadata_key;
using safetensors::prefix_bytes;

[[noreturn]] void fail(const std::string& argument, const std::string& expected, const std::string& got) {
    refuse("write_safetensors", argument, expected, got);
}

std::string json_text(const std::string& text, std::string_view argument) {
    try {
        return nlohmann::json(text).dump();
    } catch (const nlohmann::json::exception&) { fail(std::string(argument), "UTF-8", in_quotes(text)); }
}

void check_arguments(const std::vector<NamedView>& tensors, const SafetensorsMetadata& metadata) {
    if (tensors.size() > max_entries || metadata.size() > max_entries) {
        fail("tensors, metadata", "at most " + std::to_string(max_entries) + " each",
             std::to_string(tensors.size()) + " and " + std::to_string(metadata.size()));
    }
    std::set<std::string_view> seen;
    for (const auto& [name, view] : tensors) {
        if (name.empty() || name.size() > max_name_bytes || name == metadata_key) {
            fail("tensors",
                 "names of 1 to " + std::to_string(max_name_bytes) + " bytes other than " + std::string(metadata_key),
                 in_quotes(name));
        }
        if (!seen.insert(name).second) { fail("tensors", "each name once", in_quotes(name) + " twice"); }
        if (!view) { fail("tensors: " + in_quotes(name), "a view", "an absent one"); }
        if (view.shape().elements() > 0 && view.data() == nullptr) {
            fail("tensors: " + in_quotes(name), "memory for " + to_string(view.shape()), "a null pointer");
        }
    }
}

/// Which tensor's data comes when. Widest elements first: each then begins on a multiple of its element size, as all
/// sizes are powers of two and the data itself begins on a multiple of 8.
std::vector<std::size_t> data_order(const std::vector<NamedView>& tensors) {
    std::vector<std::size_t> order(tensors.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        return size_of(tensors[a].view.dtype()) > size_of(tensors[b].view.dtype());
    });
    return order;
}

/// Where each tensor's data begins.
std::vector<std::uint64_t> data_offsets(const std::vector<NamedView>& tensors, const std::vector<std::size_t>& order) {
    std::vector<std::uint64_t> begins(tensors.size());
    std::int64_t end = 0;
    for (const std::size_t n : order) {
        const View& view = tensors[n].view;
        const std::optional<std::uint64_t> bytes = safetensors::tensor_bytes(view.dtype(), view.shape());
        begins[n] = static_cast<std::uint64_t>(end);
        if (!bytes || __builtin_add_overflow(end, static_cast<std::int64_t>(*bytes), &end)) {
            fail("tensors: " + in_quotes(tensors[n].name), "fewer than 2^63 bytes in all", to_string(view.shape()));
        }
    }
    return begins;
}

/// The JSON, padded with spaces so that the data begins on a multiple of 8.
std::string header_text(const std::vector<NamedView>& tensors, const std::vector<std::uint64_t>& begins,
                        const SafetensorsMetadata& metadata) {
    std::string text = "{";
    const auto separate = [&] {
        if (text.back() != '{') { text += ','; }
    };
    if (!metadata.empty()) {
        text += "\"" + std::string(metadata_key) + "\":{";
        for (const auto& [key, value] : metadata) {
            separate();
            text += json_text(key, "metadata") + ":" + json_text(value, "metadata");
        }
        text += "}";
    }
    for (std::size_t n = 0; n < tensors.size(); ++n) {
        const auto& [name, view] = tensors[n];
        separate();
        text += json_text(name, "tensors") + ":{\"dtype\":\"" + std::string(safetensors::file_name_of(view.dtype())) +
                "\",\"shape\":[";
        for (int axis = 0; axis < view.rank(); ++axis) {
            if (axis > 0) { text += ','; }
            text += std::to_string(view.extent(axis));
        }
        const std::uint64_t bytes = *safetensors::tensor_bytes(view.dtype(), view.shape());
        text += "],\"data_offsets\":[" + std::to_string(begins[n]) + "," + std::to_string(begins[n] + bytes) + "]}";
    }
    text += "}";
    text.resize((text.size() + prefix_bytes - 1) / prefix_bytes * prefix_bytes, ' ');
    if (text.size() > max_header_bytes) {
        fail("tensors, metadata", "a header of at most " + std::to_string(max_header_bytes) + " bytes",
             std::to_string(text.size()));
    }
    return text;
}

/// Calls visit(bytes) for each contiguous piece of the view, in row-major order.
template <class Visit>
void for_each_run(const View& view, Visit visit) {
    const std::int64_t total = view.shape().elements();
    const auto size = static_cast<std::int64_t>(size_of(view.dtype()));
    const auto* start = static_cast<const std::byte*>(view.data());
    std::int64_t run = 1;
    int outer = view.rank();  // the axes from here on are one run
    while (outer > 0 && (view.extent(outer - 1) == 1 || view.stride(outer - 1) == run)) { run *= view.extent(--outer); }
    std::int64_t index[Shape::max_rank] = {};
    std::int64_t offset = 0;
    for (std::int64_t done = 0; done < total; done += run) {
        visit(std::span(start + offset * size, static_cast<std::size_t>(run * size)));
        for (int axis = outer - 1; axis >= 0; --axis) {
            offset += view.stride(axis);
            if (++index[axis] < view.extent(axis)) { break; }
            offset -= index[axis] * view.stride(axis);
            index[axis] = 0;
        }
    }
}

void write_data(AtomicFile& file, const NamedView& tensor) {
    const bool boolean = tensor.view.dtype() == DType::boolean;
    for_each_run(tensor.view, [&](std::span<const std::byte> bytes) {
        if (boolean && std::any_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte > std::byte{1}; })) {
            fail("tensors: " + in_quotes(tensor.name), "booleans of 0 and 1", "another byte");
        }
        file.write(bytes);
    });
}

}  // namespace

void write_safetensors(const std::filesystem::path& path, const std::vector<NamedView>& tensors,
                       const SafetensorsMetadata& metadata) {
    check_arguments(tensors, metadata);
    const std::vector<std::size_t> order = data_order(tensors);
    const std::string header = header_text(tensors, data_offsets(tensors, order), metadata);
    const std::uint64_t length = header.size();
    AtomicFile file("write_safetensors", path);
    file.write(std::as_bytes(std::span(&length, 1)));
    file.write(std::as_bytes(std::span(header)));
    for (const std::size_t n : order) { write_data(file, tensors[n]); }
    file.commit();
}

}  // namespace heed
