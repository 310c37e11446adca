#pragma once
/// What a client asks for in OpenAI's words.

#include <cstdint>
#include <string>
#include <vector>

#include "engine.h"
#include "json.h"

namespace heed::web {

struct Asked {
    bool chat = false;
    bool stream = false;
    bool usage = false;             ///< at the end of a stream
    std::int64_t best_scores = -1;  ///< -1: none
    std::vector<std::string> stop = {};
    bool echo = false;                                    ///< the prompt before what was made
    std::vector<std::string> echoed = {};                 ///< each text's prompt, as text; with echo
    std::vector<std::vector<std::int64_t>> prompts = {};  ///< and as ids
    std::vector<heed::Request> requests = {};             ///< none where nothing is to be made: echo with max_tokens 0
    std::string id = {};
    std::string model = {};
    std::int64_t created = 0;
    std::int64_t prompt_tokens = 0;
    /// Texts that are answered.
    std::size_t choices() const { return echo ? prompts.size() : requests.size(); }
};

/// Seconds since 1970.
std::int64_t now_seconds();
/// HttpError 404 where a request names another model.
void check_model(const Engine& engine, const Json& body);
/// A text, a list of texts, a list of ids, or a list of lists of ids.
std::vector<std::vector<std::int64_t>> read_prompts(const Engine& engine, const Json& value, const char* field);
/// HttpError 400 names what is wrong.
Asked read_asked(const Engine& engine, const Json& body, bool chat);

}  // namespace heed::web
