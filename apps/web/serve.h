#pragma once
/// `heed serve`: the page, what it asks, and the answers for programs, in one process.

#include <functional>
#include <memory>
#include <string>

#include "engine.h"
#include "http.h"
#include "look_text.h"

namespace heed::web {

struct ServeOptions {
    ServerOptions server = {};
    EngineOptions engine = {};  ///< engine.folder empty: the page opens without a model
    std::string compare = {};   ///< folder of a second model, to look at beside the first
    LookLimits look = {};
};

/// Adds the page's files and every route to `server`.
void add_page(Server& server);

/// Serves until SIGINT or SIGTERM. `ready` is called with the address to open once connections are taken.
void serve(const ServeOptions& options, const std::function<void(const std::string& address)>& ready);

}  // namespace heed::web
