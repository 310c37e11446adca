#include <heed/chat.h>

#include <fstream>
#include <iterator>

#include "base/access.h"
#include "base/refuse.h"
#include "io/file.h"
#include "text/jinja.h"
#include "text/json_field.h"

namespace heed {

struct HEED_INTERNAL ChatTemplate::State {
    std::vector<text::JinjaNode> nodes;
    text::JinjaValue specials = text::JinjaValue::object();  // bos_token and the like; those that the model has

    std::string render(text::JinjaValue messages, const ChatOptions& options) const;
};

namespace {

constexpr std::size_t config_limit = std::size_t{16} << 20U;
constexpr int json_levels = 32;
constexpr const char* special_names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                         "pad_token", "cls_token", "mask_token"};

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

/// In the order of the text, which is the order in which a template writes tools.
text::JinjaValue ordered_json_of(std::string_view text, const char* name) {
    text::parse_json(text, name, config_limit, json_levels);  // refuses what is too deep or no JSON
    return text::JinjaValue::parse(text.begin(), text.end());
}

}  // namespace

ChatTemplate ChatTemplate::from_text(std::string_view text, std::string bos_token, std::string eos_token) {
    auto state = std::make_shared<State>();
    state->nodes = text::parse_jinja(text);
    if (!bos_token.empty()) { state->specials["bos_token"] = std::move(bos_token); }
    if (!eos_token.empty()) { state->specials["eos_token"] = std::move(eos_token); }
    return ChatTemplate(std::move(state));
}

ChatTemplate ChatTemplate::from_folder(const std::filesystem::path& path) {
    const std::filesystem::path folder = model_folder(path);
    const auto json_of = [&](const char* name) {
        const bool there = std::filesystem::exists(folder / name);
        return there ? text::parse_json(file_text(folder / name), name, config_limit, json_levels)
                     : nlohmann::json(nlohmann::json::object());
    };
    const nlohmann::json config = json_of("tokenizer_config.json"), apart = json_of("chat_template.json");
    const text::JsonField whole(config, "tokenizer_config.json"), beside(apart, "chat_template.json");
    auto state = std::make_shared<State>();
    for (const char* name : special_names) {
        if (std::string token = token_text(whole[name]); !token.empty()) { state->specials[name] = std::move(token); }
    }
    if (std::filesystem::exists(folder / "chat_template.jinja")) {
        state->nodes = text::parse_jinja(file_text(folder / "chat_template.jinja"));
        return ChatTemplate(std::move(state));
    }
    const text::JsonField given = beside["chat_template"].is_null() ? whole["chat_template"] : beside["chat_template"];
    if (given.is_null()) {
        refuse("ChatTemplate", folder.string(), "a chat_template in tokenizer_config.json or chat_template.jinja",
               "none");
    }
    std::string chosen;  // of several, the one called default
    if (given.value().is_array()) {
        given.for_each([&](const text::JsonField& one) {
            if (one["name"].text_or("") == "default") { chosen = one["template"].text(); }
        });
        if (chosen.empty()) { given.fail("a template called default"); }
    } else {
        chosen = given.text();
    }
    state->nodes = text::parse_jinja(chosen);
    return ChatTemplate(std::move(state));
}

std::string ChatTemplate::State::render(text::JinjaValue messages, const ChatOptions& options) const {
    text::JinjaValue variables = specials;
    variables["tools"] = nullptr;
    variables["documents"] = nullptr;
    variables["add_generation_prompt"] = options.add_generation_prompt;
    if (!options.variables.empty()) {
        const text::JinjaValue more = ordered_json_of(options.variables, "variables");
        if (!more.is_object()) { refuse("ChatTemplate::render", "variables", "a JSON object", "another value"); }
        variables.update(more);
    }
    variables["messages"] = std::move(messages);
    return text::render_jinja(nodes, std::move(variables));
}

std::string ChatTemplate::render(const std::vector<ChatMessage>& messages, const ChatOptions& options) const {
    text::JinjaValue list = text::JinjaValue::array();
    for (const ChatMessage& message : messages) {
        list.push_back({{"role", message.role}, {"content", message.content}});
    }
    return state_->render(std::move(list), options);
}

std::string ChatTemplate::render_json(std::string_view messages, const ChatOptions& options) const {
    text::JinjaValue list = ordered_json_of(messages, "messages");
    if (!list.is_array()) { refuse("ChatTemplate::render_json", "messages", "a JSON list", "another value"); }
    return state_->render(std::move(list), options);
}

}  // namespace heed
