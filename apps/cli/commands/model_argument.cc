#include "commands/model_argument.h"

#include <fmt/format.h>
#include <heed/error.h>

#include <filesystem>
#include <fstream>

namespace {

std::string read_config(const char* command, const std::filesystem::path& path) {
    constexpr std::size_t limit = std::size_t{16} << 20U;
    std::ifstream file(path, std::ios::binary);
    std::string text(limit + 1, '\0');
    // Reading a folder opens and then fails; both end here.
    if (!file || (!file.read(text.data(), static_cast<std::streamsize>(text.size())) && !file.eof())) {
        throw heed::FileError(fmt::format("[{}] --config: cannot read {}", command, path.string()));
    }
    text.resize(static_cast<std::size_t>(file.gcount()));
    return text;  // one byte too long is refused by the parser, with the limit
}

}  // namespace

heed::ModelShape load_model_config(const char* command, const std::string& argument) {
    std::filesystem::path path = argument;
    std::error_code ignored;
    if (std::filesystem::is_directory(path, ignored)) { path /= "config.json"; }
    heed::ModelShape model;
    try {
        model = heed::model_from_config(read_config(command, path));
    } catch (const heed::Error& error) { throw heed::Error(fmt::format("{} (in {})", error.what(), path.string())); }
    // Most are called config.json; then the folder says which model it is.
    const std::filesystem::path folder = std::filesystem::absolute(path).lexically_normal().parent_path();
    model.name = path.filename() == "config.json" ? folder.filename().string() : path.stem().string();
    return model;
}
