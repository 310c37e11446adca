#include "http_text.h"

#include <algorithm>

namespace heed::web {

bool same_secret(std::string_view a, std::string_view b) {
    unsigned difference = a.size() == b.size() ? 0U : 1U;
    for (std::size_t n = 0; n < a.size(); ++n) {
        difference |= static_cast<unsigned char>(a[n]) ^ static_cast<unsigned char>(b.empty() ? 0 : b[n % b.size()]);
    }
    return difference == 0;
}

bool parse_query(std::string_view text, std::map<std::string, std::string>& query) {
    constexpr std::size_t most = 64;
    while (!text.empty()) {
        const std::string_view part = text.substr(0, text.find('&'));
        text.remove_prefix(std::min(text.size(), part.size() + 1));
        const std::size_t equals = part.find('=');
        const auto name = url_decode(part.substr(0, equals));
        const auto value = url_decode(equals == std::string_view::npos ? "" : part.substr(equals + 1));
        if (!name || !value || query.size() >= most) { return false; }
        query[*name] = *value;
    }
    return true;
}

bool host_allowed(std::string_view header, const ServerOptions& options, std::uint16_t port) {
    std::string_view name = header;
    const std::size_t colon = name.rfind(':');
    const bool has_port = colon != std::string_view::npos && name.find(']', colon) == std::string_view::npos &&
                          (name.starts_with('[') || name.find(':') == colon);
    if (has_port) {
        if (name.substr(colon + 1) != std::to_string(port)) { return false; }
        name = name.substr(0, colon);
    } else if (port != 80) {
        return false;
    }
    if (name == "127.0.0.1" || name == "localhost" || name == "[::1]") { return true; }
    // Told to listen beyond this machine: reached under whatever name the network gives it, and guarded by the token.
    if (!options.token.empty()) { return !name.empty(); }
    return name == options.host || name == "[" + options.host + "]";
}

std::optional<std::string> url_decode(std::string_view text) {
    const auto digit = [](char c) {
        if (c >= '0' && c <= '9') { return c - '0'; }
        if (c >= 'a' && c <= 'f') { return c - 'a' + 10; }
        if (c >= 'A' && c <= 'F') { return c - 'A' + 10; }
        return -1;
    };
    std::string result;
    for (std::size_t n = 0; n < text.size(); ++n) {
        char c = text[n] == '+' ? ' ' : text[n];
        if (c == '%') {
            if (n + 2 >= text.size() || digit(text[n + 1]) < 0 || digit(text[n + 2]) < 0) { return std::nullopt; }
            c = static_cast<char>(digit(text[n + 1]) * 16 + digit(text[n + 2]));
            n += 2;
        }
        if (c == '\0') { return std::nullopt; }
        result += c;
    }
    return result;
}

}  // namespace heed::web
