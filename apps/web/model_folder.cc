#include "model_folder.h"

#include <filesystem>

namespace heed::web {
namespace {

using Path = std::filesystem::path;

std::string name_of_folder(const Path& folder) {
    const Path whole = std::filesystem::absolute(folder).lexically_normal();
    const std::string name = whole.has_filename() ? whole.filename().string() : whole.parent_path().filename().string();
    return name.empty() ? "model" : name;
}

/// Where a model lies, and what it is called: a run of `heed train` has its best one in a folder of its own.
struct Place {
    Path files;
    std::string name;
};

Place place_of(const Path& folder) {
    const bool is_model = std::filesystem::exists(folder / "config.json");
    const Path run = is_model ? std::filesystem::absolute(folder / "..").lexically_normal() : folder;
    if (!std::filesystem::exists(run / "run.json")) { return {folder, name_of_folder(folder)}; }
    return {is_model ? folder : folder / "best", name_of_folder(run)};  // not "best", which every run has
}

/// Without a tokenizer, ids alone can be asked for.
std::optional<Tokenizer> tokenizer_in(const Path& folder) {
    const Path file = folder / "tokenizer.json";
    return std::filesystem::exists(file) ? std::optional(Tokenizer(file)) : std::nullopt;
}

/// A folder without a template is no mistake; one with a broken template still completes texts.
void read_chat_template(const Path& folder, OpenModel& open) {
    if (!std::filesystem::exists(folder / "chat_template.jinja") &&
        !std::filesystem::exists(folder / "tokenizer_config.json")) {
        return;
    }
    try {
        open.chat = ChatTemplate::from_folder(folder);
    } catch (const Error& error) { open.chat_refused = error.what(); }
}

}  // namespace

OpenModel open_model(const std::string& folder, WeightStorage weights) {
    const Place place = place_of(folder);
    OpenModel open{.model = Model::load(place.files, {.weights = weights})};
    open.tokenizer = tokenizer_in(place.files);
    for (std::int64_t id = 0; open.tokenizer && id < open.tokenizer->id_limit(); ++id) {
        const auto token = open.tokenizer->is_special(id) ? open.tokenizer->token_of(id) : std::nullopt;
        if (token && !token->empty()) { open.special.push_back(*token); }
    }
    open.name = place.name;
    read_chat_template(place.files, open);
    return open;
}

}  // namespace heed::web
