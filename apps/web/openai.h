#pragma once
#include "engine.h"
#include "http.h"

namespace heed::web {

/// /v1/models, /v1/completions, /v1/chat/completions, /v1/embeddings, as OpenAI's clients ask for them. `engine`
/// outlives the server.
void add_openai(Server& server, Engine& engine);

}  // namespace heed::web
