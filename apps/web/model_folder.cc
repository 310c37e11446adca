#include "model_folder.h"

#include <filesystem>
#include <fstream>
#include <iterator>

#include <heed/train.h>

#include "json.h"

namespace heed::web {
namespace {

/// The alphabet of the built-in tasks as a tokenizer: one id a character, 0 padding, 1 start, 2 end. A decoder
/// reads the start token and the text, the encoder of an encoder-decoder the text and the end token.
Tokenizer task_tokenizer(ModelKind kind) {
    Json vocab = {{"<pad>", 0}, {"<s>", 1}, {"</s>", 2}};
    Json added = Json::array();
    for (std::int64_t id = 0; id < task_vocab(); ++id) {
        const std::int64_t one[] = {id};
        const std::string letter = task_decode(one);
        if (!letter.empty()) { vocab[letter] = id; }
    }
    for (const auto& [name, id] : vocab.items()) {
        if (id.get<std::int64_t>() > 2) { continue; }
        added.push_back({{"id", id},
                         {"content", name},
                         {"single_word", false},
                         {"lstrip", false},
                         {"rstrip", false},
                         {"normalized", false},
                         {"special", true}});
    }
    Json json = {{"version", "1.0"},
                 {"added_tokens", added},
                 {"normalizer", nullptr},
                 {"pre_tokenizer", nullptr},
                 {"post_processor", nullptr},
                 {"decoder", {{"type", "Fuse"}}},
                 {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", Json::array()}}}};
    if (kind != ModelKind::encoder) {
        const bool decoder = kind == ModelKind::decoder;
        const std::string name = decoder ? "<s>" : "</s>";
        const Json special = {{"SpecialToken", {{"id", name}, {"type_id", 0}}}};
        const Json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
        const Json second = {{"Sequence", {{"id", "B"}, {"type_id", 0}}}};
        const Json entry = {{"id", name}, {"ids", Json::array({decoder ? 1 : 2})}, {"tokens", Json::array({name})}};
        json["post_processor"] = {
            {"type", "TemplateProcessing"},
            {"single", decoder ? Json::array({special, text}) : Json::array({text, special})},
            {"pair", decoder ? Json::array({special, text, second}) : Json::array({text, second, special})},
            {"special_tokens", {{name, entry}}}};
    }
    return Tokenizer::from_json(json.dump());
}

/// Did `heed train` make it, for a built-in task? Then run.json stands beside the folder.
bool made_for_task(const std::filesystem::path& folder) {
    const std::filesystem::path file = std::filesystem::absolute(folder / "..").lexically_normal() / "run.json";
    constexpr std::uintmax_t longest = std::uintmax_t{1} << 20;
    std::error_code error;
    const std::uintmax_t size = std::filesystem::file_size(file, error);
    if (error || size > longest) { return false; }
    std::ifstream stream(file, std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
    try {
        return !read_train_config(text).data.task.empty();
    } catch (const Error&) { return false; }  // somebody else's file of that name
}

std::optional<Tokenizer> tokenizer_in(const std::filesystem::path& folder, const ModelConfig& config) {
    const std::filesystem::path file = folder / "tokenizer.json";
    if (std::filesystem::exists(file)) { return Tokenizer(file); }
    if (config.vocab == task_vocab() && made_for_task(folder)) { return task_tokenizer(config.kind); }
    return std::nullopt;
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
    open.tokenizer = tokenizer_in(folder, open.model.config());
    for (std::int64_t id = 0; open.tokenizer && id < open.tokenizer->id_limit(); ++id) {
        const auto token = open.tokenizer->is_special(id) ? open.tokenizer->token_of(id) : std::nullopt;
        if (token && !token->empty()) { open.special.push_back(*token); }
    }
    open.name = name_of_folder(folder);
    read_chat_template(folder, open);
    return open;
}

}  // namespace heed::web
