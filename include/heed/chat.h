#pragma once
/// Conversations as the text that a model was trained on.
///
///     const heed::ChatTemplate chat = heed::ChatTemplate::from_folder("folder");
///     chat.render({{{"user", "Hello"}}});

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <heed/error.h>

namespace heed {

struct ChatMessage {
    std::string role{};  ///< system, user, assistant
    std::string content{};
};

struct ChatOptions {
    bool add_generation_prompt = true;  ///< what precedes the assistant's answer, at the end
    /// A JSON object of further variables that the template may ask for: {"tools": [...], "enable_thinking": false}.
    std::string variables{};
};

/// The template of a model's tokenizer_config.json or chat_template.jinja: the part of Jinja that public templates are
/// made of, as transformers renders it. Other statements, filters and tests are refused by Error when the template is
/// read, other functions and methods when it calls them.
class HEED_API ChatTemplate {
public:
    struct State;

    /// chat_template.jinja, chat_template.json, else tokenizer_config.json; its bos_token, eos_token and the like.
    static ChatTemplate from_folder(const std::filesystem::path& folder);
    static ChatTemplate from_text(std::string_view text, std::string bos_token = {}, std::string eos_token = {});

    /// Error where the template itself refuses the conversation, or does what it cannot.
    std::string render(const std::vector<ChatMessage>& messages, const ChatOptions& options = {}) const;
    /// The same for a JSON list of messages with whatever fields the template knows: tool calls, content in parts.
    std::string render_json(std::string_view messages, const ChatOptions& options = {}) const;

private:
    explicit ChatTemplate(std::shared_ptr<const State> state) : state_(std::move(state)) {}
    std::shared_ptr<const State> state_;
};

}  // namespace heed
