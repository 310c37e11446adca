#include <heed/chat.h>
#include <heed/error.h>

#include <cstdint>
#include <string_view>

#include "require.h"

/// A template, a zero byte, messages in JSON. The template is read or refused, and so are the messages; what it writes
/// is bounded.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string_view whole(reinterpret_cast<const char*>(data), size);
    const std::size_t cut = whole.find('\0');
    const std::string_view messages = cut == std::string_view::npos
                                          ? R"([{"role": "user", "content": "a"}, {"role": "b", "content": [1, "c"]}])"
                                          : whole.substr(cut + 1);
    try {
        const heed::ChatTemplate chat = heed::ChatTemplate::from_text(whole.substr(0, cut), "<s>");
        constexpr std::size_t most = std::size_t{65} << 20U;
        require(chat.render_json(messages, {.variables = R"({"tools": [{"name": "f"}]})"}).size() < most);
    } catch (const heed::Error&) { return 0; }
    return 0;
}
