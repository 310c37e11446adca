#include "model_folder.h"

#include <filesystem>
#include <fstream>
#include <iterator>

namespace heed::web {
namespace {

/// Without one, ids alone can be asked for.
std::optional<Tokenizer> tokenizer_in(const std::filesystem::path& folder) {
    const bool there = std::filesystem::exists(folder / "tokenizer.json") ||
                       std::filesystem::exists(folder / "best" / "tokenizer.json");
    return there ? std::optional(Tokenizer(folder)) : std::nullopt;
}

std::string name_of_folder(const std::filesystem::path& folder) {
    const std::filesystem::path whole = std::filesystem::absolute(folder).lexically_normal();
    const std::string name = whole.has_filename() ? whole.filename().string() : whole.parent_path().filename().string();
    return name.empty() ? "model" : name;
}

/// A folder without a template is no mistake; one with a broken template still completes texts.
void read_chat_template(const std::filesystem::path& folder, OpenModel& open) {
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
    OpenModel open{.model = Model::load(folder, {.weights = weights})};
    open.tokenizer = tokenizer_in(folder);
    for (std::int64_t id = 0; open.tokenizer && id < open.tokenizer->id_limit(); ++id) {
        const auto token = open.tokenizer->is_special(id) ? open.tokenizer->token_of(id) : std::nullopt;
        if (token && !token->empty()) { open.special.push_back(*token); }
    }
    open.name = name_of_folder(folder);
    read_chat_template(folder, open);
    return open;
}

}  // namespace heed::web
