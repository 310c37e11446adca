#pragma once
#include "engine.h"
#include "http.h"

namespace heed::web {

/// What the page's Look part asks: the attention of a model over a text, head by head. `engine` outlives the server.
void add_look(Server& server, Engine& engine);

}  // namespace heed::web
