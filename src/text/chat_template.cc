#include <heed/chat.h>

#include <fstream>
#include <iterator>

#include "base/access.h"
#include "io/file.h"
#include "text/jinja.h"
#include "text/json_field.h"

namespace heed {

struct HEED_INTERNAL ChatTemplate::State {
    std::vector<text::JinjaNode> nodes;
    std::string bos, eos;
};

namespace {

constexpr std::size_t config_limit = std::size_t{16} << 20U;

std::string file_text(const std::filesystem::path& path) {
    const InputFile file("ChatTemplate", path);
    if (file.size() > config_limit) {
        throw FileError("[ChatTemplate] " + path.string() + ": expected at most 16 MB, got more");
    }
    std::string text(static_cast<std::size_t>(file.size()), '\0');
    file.read(0, std::as_writable_bytes(std::span(text)));
    return text;
}

/// "<s>", or {"content": "<s>", ...}.
std::string token_text(const text::JsonField& field) {
    if (field.is_null()) { return {}; }
    return field.value().is_object() ? field["content"].text_or("") : field.text();
}

}  // namespace

ChatTemplate ChatTemplate::from_text(std::string_view text, std::string bos_token, std::string eos_token) {
    auto state = std::make_shared<State>();
    state->nodes = text::parse_jinja(text);
    state->bos = std::move(bos_token);
    state->eos = std::move(eos_token);
    return ChatTemplate(std::move(state));
}

ChatTemplate ChatTemplate::from_folder(const std::filesystem::path& path) {
    const std::filesystem::path folder = model_folder(path);
    constexpr int levels = 32;
    nlohmann::json config = nlohmann::json::object();
    if (std::filesystem::exists(folder / "tokenizer_config.json")) {
        config = text::parse_json(file_text(folder / "tokenizer_config.json"), "tokenizer_config.json", config_limit,
                                  levels);
    }
    const text::JsonField whole(config, "tokenizer_config.json");
    const std::string bos = token_text(whole["bos_token"]), eos = token_text(whole["eos_token"]);
    if (std::filesystem::exists(folder / "chat_template.jinja")) {
        return from_text(file_text(folder / "chat_template.jinja"), bos, eos);
    }
    const text::JsonField given = whole["chat_template"];
    if (given.is_null()) {
        throw Error("[ChatTemplate] " + folder.string() +
                    ": expected a chat_template in tokenizer_config.json or chat_template.jinja, got none");
    }
    if (!given.value().is_array()) { return from_text(given.text(), bos, eos); }
    std::string chosen;  // of several, the one called default
    given.for_each([&](const text::JsonField& one) {
        if (one["name"].text_or("") == "default") { chosen = one["template"].text(); }
    });
    if (chosen.empty()) { given.fail("a template called default"); }
    return from_text(chosen, bos, eos);
}

std::string ChatTemplate::render(const std::vector<ChatMessage>& messages, const ChatOptions& options) const {
    text::JinjaValue variables = text::JinjaValue::object();
    variables["messages"] = text::JinjaValue::array();
    for (const ChatMessage& message : messages) {
        variables["messages"].push_back({{"role", message.role}, {"content", message.content}});
    }
    variables["add_generation_prompt"] = options.add_generation_prompt;
    variables["bos_token"] = state_->bos;
    variables["eos_token"] = state_->eos;
    return text::render_jinja(state_->nodes, std::move(variables));
}

}  // namespace heed
