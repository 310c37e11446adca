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

/// Bytes as tokens, as `heed train` reads a text without a tokenizer: id 65 is "A". Written as byte-level BPE without
/// merges, whose alphabet spells every byte as a letter.
Tokenizer byte_tokenizer() {
    Json vocab = Json::object();
    int shifted = 256;  // bytes that are no letters take their letters from here on
    for (int byte = 0; byte < 256; ++byte) {
        const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
        const int letter = printable ? byte : shifted++;
        std::string text;  // as UTF-8: below 0x800 two bytes are enough
        if (letter < 0x80) {
            text = static_cast<char>(letter);
        } else {
            text = {static_cast<char>(0xc0 | (letter >> 6)), static_cast<char>(0x80 | (letter & 0x3f))};
        }
        vocab[text] = byte;
    }
    const Json level = {
        {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
    return Tokenizer::from_json(Json{{"version", "1.0"},
                                     {"added_tokens", Json::array()},
                                     {"normalizer", nullptr},
                                     {"pre_tokenizer", level},
                                     {"post_processor", nullptr},
                                     {"decoder", level},
                                     {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", Json::array()}}}}
                                    .dump());
}

using Path = std::filesystem::path;

/// What `heed train` was told, where it made the folder: run.json stands beside it. Nothing for anybody else's.
std::optional<DataConfig> data_of_run(const Path& run) {
    const Path file = run / "run.json";
    constexpr std::uintmax_t longest = std::uintmax_t{1} << 20;
    std::error_code error;
    const std::uintmax_t size = std::filesystem::file_size(file, error);
    if (error || size > longest) { return std::nullopt; }
    std::ifstream stream(file, std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
    try {
        return read_train_config(text).data;
    } catch (const Error&) { return std::nullopt; }  // somebody else's file of that name
}

/// tokenizer.json; else what a run of `heed train` reads: a task's letters, or bytes.
std::optional<Tokenizer> tokenizer_in(const Path& folder, const std::optional<DataConfig>& data,
                                      const ModelConfig& config) {
    constexpr std::int64_t byte_vocab = 260;  // with padding, start, end and mask
    const Path file = folder / "tokenizer.json";
    if (std::filesystem::exists(file)) { return Tokenizer(file); }
    if (!data) { return std::nullopt; }
    if (!data->task.empty() && config.vocab == task_vocab()) { return task_tokenizer(config.kind); }
    const bool bytes = data->tokenizer.empty() && (!data->text.empty() || !data->lines.empty());
    if (bytes && config.vocab == byte_vocab) { return byte_tokenizer(); }
    return std::nullopt;
}

std::string name_of_folder(const Path& folder) {
    const Path whole = std::filesystem::absolute(folder).lexically_normal();
    const std::string name = whole.has_filename() ? whole.filename().string() : whole.parent_path().filename().string();
    return name.empty() ? "model" : name;
}

/// Where a model lies, and whose it is: a run of `heed train` has its best one in a folder of its own.
struct Place {
    Path files;
    std::optional<DataConfig> data;  ///< of a run
    std::string name;
};

Place place_of(const Path& folder) {
    const bool is_model = std::filesystem::exists(folder / "config.json");
    const Path run = is_model ? std::filesystem::absolute(folder / "..").lexically_normal() : folder;
    const std::optional<DataConfig> data = data_of_run(run);
    if (!data) { return {folder, data, name_of_folder(folder)}; }
    return {is_model ? folder : folder / "best", data, name_of_folder(run)};  // not "best", which every run has
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
    open.tokenizer = tokenizer_in(place.files, place.data, open.model.config());
    for (std::int64_t id = 0; open.tokenizer && id < open.tokenizer->id_limit(); ++id) {
        const auto token = open.tokenizer->is_special(id) ? open.tokenizer->token_of(id) : std::nullopt;
        if (token && !token->empty()) { open.special.push_back(*token); }
    }
    open.name = place.name;
    read_chat_template(place.files, open);
    return open;
}

}  // namespace heed::web
