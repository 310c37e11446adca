#include "chat.h"

#include <algorithm>

#include "fields.h"

namespace heed::web {
namespace {

/// Text of a message: a string, or the parts of type text.
std::string content_of(const Json& message) {
    const auto content = message.find("content");
    if (content == message.end() || content->is_null()) { return {}; }
    if (content->is_string()) { return content->get<std::string>(); }
    std::string text;
    if (!content->is_array()) { throw bad_field("messages.content", "a text", *content); }
    for (const Json& part : *content) {
        if (!part.is_object() || part.value("type", "") != "text" || !part.contains("text") ||
            !part["text"].is_string()) {
            throw bad_field("messages.content", "parts of type text", part);
        }
        text += part["text"].get<std::string>();
    }
    return text;
}

std::vector<ChatMessage> read_messages(const Json& messages) {
    if (!messages.is_array() || messages.empty()) { throw bad_field("messages", "a list of messages", messages); }
    std::vector<ChatMessage> list;
    for (const Json& message : messages) {
        if (!message.is_object() || !message.contains("role") || !message["role"].is_string()) {
            throw bad_field("messages", "objects with a role", message);
        }
        const std::string role = message["role"].get<std::string>();
        if (role != "system" && role != "developer" && role != "user" && role != "assistant") {
            throw bad_field("messages.role", "system, developer, user or assistant", message["role"]);
        }
        list.push_back({role, content_of(message)});
    }
    return list;
}

/// Does a text spell out a special token?
bool spells_special(const OpenModel& open, const std::string& text) {
    return std::ranges::any_of(open.special,
                               [&](const std::string& token) { return text.find(token) != std::string::npos; });
}

/// What stands for the n-th message while the template is rendered: private characters, which nothing else says.
std::string placeholder(std::size_t n) { return "\xee\x80\x80" + std::to_string(n) + "\xee\x80\x81"; }

class Conversation {
public:
    explicit Conversation(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
    void add(const std::string& text, bool special) {
        if (text.empty()) { return; }
        const auto more =
            tokenizer_.encode(text, {.add_special_tokens = false, .allow_special = special, .truncate_and_pad = false});
        ids_.insert(ids_.end(), more.begin(), more.end());
    }
    std::vector<std::int64_t> ids() && { return std::move(ids_); }

private:
    const Tokenizer& tokenizer_;
    std::vector<std::int64_t> ids_;
};

}  // namespace

std::vector<std::int64_t> read_conversation(const OpenModel& open, const Json& messages) {
    std::vector<ChatMessage> list = read_messages(messages);
    if (!open.tokenizer || !open.chat) {
        throw HttpError{400,
                        "messages: expected a model whose folder has a tokenizer.json and a chat template "
                        "(chat_template.jinja or tokenizer_config.json), got " +
                            (open.chat_refused.empty() ? open.name + " without" : open.chat_refused) +
                            "; /v1/completions needs none"};
    }
    // A message that spells out a special token is put in afterwards, as letters; the others are encoded with the
    // template around them, as the model was trained.
    std::vector<std::string> said;
    for (ChatMessage& message : list) {
        said.push_back(message.content);
        if (spells_special(open, message.content)) { message.content = placeholder(said.size() - 1); }
    }
    std::string rendered;
    try {
        rendered = open.chat->render(list);
    } catch (const Error& error) {
        throw HttpError{400,
                        std::string("messages: expected a conversation that the template takes, got ") + error.what()};
    }
    Conversation conversation(*open.tokenizer);
    std::size_t from = 0;
    for (std::size_t n = 0; n < said.size(); ++n) {
        if (list[n].content == said[n]) { continue; }
        const std::string mark = placeholder(n);
        const std::size_t at = rendered.find(mark, from);
        if (at == std::string::npos) { continue; }  // the template leaves this message out
        conversation.add(rendered.substr(from, at - from), true);
        conversation.add(said[n], false);
        from = at + mark.size();
    }
    conversation.add(rendered.substr(from), true);
    return std::move(conversation).ids();
}

}  // namespace heed::web
