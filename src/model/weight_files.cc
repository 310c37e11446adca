#include "model/weight_files.h"

#include <heed/error.h>

#include <deque>
#include <nlohmann/json.hpp>

#include "io/file.h"
#include "model/index.h"

namespace heed {
namespace {

constexpr std::size_t most_text = std::size_t{64} << 20U;

/// The first tensor of each shard.
std::vector<std::size_t> shard_beginnings(const std::vector<TensorToWrite>& tensors, std::uint64_t most) {
    std::vector<std::size_t> beginnings = {0};
    std::uint64_t bytes = 0;
    for (std::size_t n = 0; n < tensors.size(); ++n) {
        if (most > 0 && n > beginnings.back() && bytes + tensors[n].bytes > most) {
            beginnings.push_back(n);
            bytes = 0;
        }
        bytes += tensors[n].bytes;
    }
    return beginnings;
}

std::string shard_name(std::size_t number, std::size_t count) {
    const auto five = [](std::size_t n) {
        const std::string digits = std::to_string(n);
        return std::string(digits.size() < 5 ? 5 - digits.size() : 0, '0') + digits;
    };
    return "model-" + five(number) + "-of-" + five(count) + ".safetensors";
}

void write_part(const std::filesystem::path& path, std::span<const TensorToWrite> tensors,
                const SafetensorsMetadata& metadata) {
    std::deque<Tensor> kept;
    std::vector<NamedView> views;
    for (const TensorToWrite& tensor : tensors) { views.push_back({tensor.name, tensor.get(kept.emplace_back())}); }
    write_safetensors(path, views, metadata);
}

/// Shards and index of an earlier model must not be found beside the new one.
void remove_others(const std::filesystem::path& folder, const std::vector<std::string>& written) {
    std::vector<std::filesystem::path> old;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
        const std::string name = entry.path().filename().string();
        const bool shard = name.starts_with("model-") && name.ends_with(".safetensors");
        const bool ours = shard || name == weights_name || name == index_name;
        if (ours && std::find(written.begin(), written.end(), name) == written.end()) { old.push_back(entry.path()); }
    }
    for (const auto& path : old) { std::filesystem::remove(path); }
}

}  // namespace

std::string read_text_file(const char* function, const std::filesystem::path& path) {
    const InputFile file(function, path);
    if (file.size() > most_text) {
        throw FileError("[" + std::string(function) + "] " + path.string() + ": expected at most " +
                        std::to_string(most_text) + " bytes, got " + std::to_string(file.size()));
    }
    std::string text(file.size(), '\0');
    file.read(0, std::as_writable_bytes(std::span(text)));
    return text;
}

WeightFiles::WeightFiles(const char* function, const std::filesystem::path& folder) {
    const auto whole = folder / weights_name;
    if (!std::filesystem::exists(whole) && std::filesystem::exists(folder / index_name)) {
        open_shards(function, folder);
        return;
    }
    files_.push_back(SafetensorsFile::open(whole));
    for (const std::string& name : files_.back().names()) { where_.emplace(name, 0); }
}

void WeightFiles::open_shards(const char* function, const std::filesystem::path& folder) {
    const auto index = folder / index_name;
    std::map<std::string, std::size_t> opened;
    for (const auto& [tensor, shard] : read_weight_index(index.string(), read_text_file(function, index))) {
        if (!opened.contains(shard)) {
            files_.push_back(SafetensorsFile::open(folder / shard));
            opened.emplace(shard, files_.size() - 1);
        }
        if (!files_[opened[shard]].contains(tensor)) {
            throw FileError("[" + std::string(function) + "] " + (folder / shard).string() + ": expected tensor " +
                            in_quotes(tensor) + ", which the index says is there, got none");
        }
        where_.emplace(tensor, opened[shard]);
    }
    if (files_.empty()) {
        throw FileError("[" + std::string(function) + "] " + index.string() + ": expected tensors, got none");
    }
}

void write_weight_files(const char* function, const std::filesystem::path& folder,
                        const std::vector<TensorToWrite>& tensors, std::uint64_t max_shard_bytes,
                        const SafetensorsMetadata& metadata) {
    const std::vector<std::size_t> beginnings = shard_beginnings(tensors, max_shard_bytes);
    if (beginnings.size() == 1) {
        write_part(folder / weights_name, tensors, metadata);
        remove_others(folder, {weights_name});
        return;
    }
    nlohmann::ordered_json map = nlohmann::ordered_json::object();
    std::vector<std::string> written = {index_name};
    std::uint64_t total = 0;
    for (std::size_t n = 0; n < beginnings.size(); ++n) {
        const std::size_t begin = beginnings[n], end = n + 1 < beginnings.size() ? beginnings[n + 1] : tensors.size();
        written.push_back(shard_name(n + 1, beginnings.size()));
        write_part(folder / written.back(), std::span(tensors).subspan(begin, end - begin), metadata);
        for (std::size_t i = begin; i < end; ++i) {
            map[tensors[i].name] = written.back();
            total += tensors[i].bytes;
        }
    }
    const std::string text = nlohmann::ordered_json{{"metadata", {{"total_size", total}}}, {"weight_map", map}}.dump(2);
    AtomicFile index(function, folder / index_name);
    index.write(std::as_bytes(std::span(text)));
    index.commit();
    remove_others(folder, written);
}

}  // namespace heed
