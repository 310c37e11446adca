#pragma once
/// What a client is answered in OpenAI's words: at once, or token by token.

#include <memory>

#include "http.h"
#include "openai_asked.h"

namespace heed::web {

inline std::string dumped(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

/// Waits until all texts have ended, or the client has gone.
Response whole_answer(Engine& engine, const Asked& asked, const std::shared_ptr<Run>& started, const Stream& client);
/// Server-sent events, one a token.
void stream_answer(Engine& engine, const Asked& asked, const std::shared_ptr<Run>& started, Stream& client);

}  // namespace heed::web
