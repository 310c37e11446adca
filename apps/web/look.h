#pragma once
#include <memory>

#include "http.h"
#include "look_text.h"

namespace heed::web {

/// What the page's Look part asks: the attention of a model over a text, head by head.
void add_look(Server& server, const std::shared_ptr<Looker>& looker);

}  // namespace heed::web
