#pragma once
/// The safetensors files of a model's folder: one, or shards with an index.

#include <heed/safetensors.h>

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace heed {

constexpr const char* weights_name = "model.safetensors";
constexpr const char* index_name = "model.safetensors.index.json";

/// A small text file of a folder. Errors begin with the function.
std::string read_text_file(const char* function, const std::filesystem::path& path);

/// The tensors of a folder, whichever files they are in.
class WeightFiles {
public:
    WeightFiles(const char* function, const std::filesystem::path& folder);

    const SafetensorsFile* find(const std::string& name) const {
        const auto found = where_.find(name);
        return found == where_.end() ? nullptr : &files_[found->second];
    }
    /// Names, in order, and the number of the file.
    const std::map<std::string, std::size_t>& all() const { return where_; }
    const SafetensorsMetadata& metadata() const { return files_.front().metadata(); }
    std::vector<SafetensorsFile> take() { return std::move(files_); }

private:
    void open_shards(const char* function, const std::filesystem::path& folder);

    std::vector<SafetensorsFile> files_;
    std::map<std::string, std::size_t> where_;
};

/// A tensor that will be written: how large it is, and how to get it when its turn comes. The view may refer to memory
/// that `keep` holds.
struct TensorToWrite {
    std::string name;
    std::uint64_t bytes = 0;
    std::function<View(Tensor& keep)> get;
};

/// model.safetensors, or shards of at most so many bytes each (one tensor at least) with their index; 0: one file.
/// Files of the other kind that were there are removed.
void write_weight_files(const char* function, const std::filesystem::path& folder,
                        const std::vector<TensorToWrite>& tensors, std::uint64_t max_shard_bytes,
                        const SafetensorsMetadata& metadata);

}  // namespace heed
