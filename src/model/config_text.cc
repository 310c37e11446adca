#include "model/config_text.h"

#include "base/refuse.h"

#include <heed/error.h>

#include <set>
#include <vector>

namespace heed {
namespace {

using nlohmann::json;

// A config.json has a few kilobytes; label lists of classifiers make the longest ones.
constexpr std::size_t text_limit = std::size_t{16} << 20U;
constexpr int depth_limit = 32;

constexpr bool continues_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/// Python writes infinite numbers as words that JSON does not have. They come as texts, so that whoever reads such a
/// value sees what it is and whoever does not is not kept from the rest.
std::string with_words_quoted(std::string_view text) {
    std::string result;
    result.reserve(text.size() + 16);
    bool quoted = false;
    for (std::size_t at = 0; at < text.size(); ++at) {
        const char c = text[at];
        if (quoted && c == '\\' && at + 1 < text.size()) {
            result += c;
            result += text[++at];
            continue;
        }
        if (c == '"') { quoted = !quoted; }
        bool found = false;
        for (const std::string_view word : {"-Infinity", "Infinity", "NaN"}) {
            const std::size_t end = at + word.size();
            if (quoted || !text.substr(at).starts_with(word)) { continue; }
            if ((at > 0 && continues_word(text[at - 1])) || (end < text.size() && continues_word(text[end]))) { break; }
            result += '"';
            result += word;
            result += '"';
            at = end - 1;
            found = true;
            break;
        }
        if (!found) { result += c; }
    }
    return result;
}

}  // namespace

std::string shown(const json& value) {
    constexpr std::size_t longest = 48;
    std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
    if (text.size() > longest) { text = text.substr(0, longest) + "..."; }
    return text;
}

json parse_config(std::string_view function, std::string_view text) {
    const auto fail = [&](std::string_view key, const std::string& expected, const std::string& got) {
        refuse(std::string(function), std::string(key), expected, got);
    };
    if (text.size() > text_limit) {
        fail("json", "at most " + std::to_string(text_limit) + " bytes", std::to_string(text.size()));
    }
    // One set of keys for every open object, so that a key given twice does not silently win over itself.
    std::vector<std::set<std::string>> open;
    const auto watch = [&](int depth, json::parse_event_t event, json& parsed) {
        if (depth > depth_limit) { fail("json", "at most " + std::to_string(depth_limit) + " levels", "more"); }
        if (event == json::parse_event_t::object_start) { open.emplace_back(); }
        if (event == json::parse_event_t::object_end) { open.pop_back(); }
        if (event == json::parse_event_t::key && !open.back().insert(parsed.get<std::string>()).second) {
            fail("json", "every key once", shown(parsed) + " twice");
        }
        return true;
    };
    json file;
    const bool has_words = text.find("Infinity") != text.npos || text.find("NaN") != text.npos;
    const std::string plain = has_words ? with_words_quoted(text) : std::string();
    const std::string_view parsed_text = has_words ? std::string_view(plain) : text;
    try {
        file = json::parse(parsed_text.begin(), parsed_text.end(), watch);
    } catch (const json::parse_error& error) {
        fail("json", "JSON text", "something else at byte " + std::to_string(error.byte));
    } catch (const json::exception&) { fail("json", "JSON numbers that a double can hold", "a larger one"); }
    if (!file.is_object()) { fail("json", "an object", shown(file)); }
    return file;
}

}  // namespace heed
