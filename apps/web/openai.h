#pragma once
#include <string>

#include "engine.h"
#include "http.h"

namespace heed::web {

/// How a conversation becomes one text. Templates of checkpoints are programs (Jinja), which are not run here: the
/// format is named instead.
struct ChatFormat {
    std::string name = {};  ///< chatml, llama3, plain; empty: none, and chats are refused
};
/// Error for a name that is not known.
ChatFormat chat_format(const std::string& name);

/// /v1/models, /v1/completions, /v1/chat/completions, /v1/embeddings, as OpenAI's clients ask for them. `engine`
/// outlives the server.
void add_openai(Server& server, Engine& engine, const ChatFormat& chat);

}  // namespace heed::web
