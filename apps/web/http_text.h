#pragma once
/// What a request says in its first lines, read and judged.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "http.h"

namespace heed::web {

/// Is this Host header one of a server on `host`:`port`? Keeps pages of other origins from reaching a server on
/// loopback through a name of their own (DNS rebinding).
bool host_allowed(std::string_view header, const ServerOptions& options, std::uint16_t port);
/// Decodes %XX and +; nothing where an escape is broken or the result has a NUL byte.
std::optional<std::string> url_decode(std::string_view text);
/// "a=1&b=2"; false where it is broken or has too many.
bool parse_query(std::string_view text, std::map<std::string, std::string>& query);
/// In time that does not depend on where the two differ.
bool same_secret(std::string_view a, std::string_view b);

}  // namespace heed::web
