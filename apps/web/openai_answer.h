#pragma once
/// What a client is answered in OpenAI's words: at once, or token by token.

#include <memory>

#include "http.h"
#include "openai_asked.h"

namespace heed::web {

inline std::string dumped(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

/// Texts that were started. Cancels what nobody waits for any more, however the waiting ends.
class Watched {
public:
    Watched(Engine& engine, std::vector<heed::Request> requests);
    ~Watched();
    Watched(const Watched&) = delete;
    Watched& operator=(const Watched&) = delete;
    /// The next token of any of them, as Run::next.
    std::optional<TokenEvent> next(const Stream& client) const;
    const Generated& result(std::size_t index) const;

private:
    Engine& engine_;
    std::shared_ptr<Run> run_;  ///< none where nothing is to be made
};

/// Waits until all texts have ended, or the client has gone.
Response whole_answer(Engine& engine, const Asked& asked, const Watched& run, const Stream& client);
/// Server-sent events, one a token.
void stream_answer(Engine& engine, const Asked& asked, const Watched& run, Stream& client);

}  // namespace heed::web
