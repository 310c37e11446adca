#pragma once
#include "http.h"
#include "json.h"

namespace heed::web {

/// What the page's Learn part asks: small examples computed by the library, every number of them.
void add_learn(Server& server);

/// The answers themselves, for tests. Each takes the request's body and throws HttpError or heed::Error.
Json walkthrough_answer(const Json& request);
Json pattern_answer(const Json& request);
Json rope_answer(const Json& request);
Json kinds_answer(const Json& request);
Json sizes_answer(const Json& request);
Json linear_answer(const Json& request);
Json infini_answer(const Json& request);

}  // namespace heed::web
