#include <heed/error.h>
#include <heed/tokenizer.h>

#include <cstdint>
#include <string_view>

#include "require.h"

/// A file, a zero byte, a text. The file is read or refused; what a tokenizer makes of a text are ids of its own, and
/// decoding takes any ids.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string_view whole(reinterpret_cast<const char*>(data), size);
    const std::size_t cut = whole.find('\0');
    const std::string_view text = cut == std::string_view::npos ? whole.substr(0, 64) : whole.substr(cut + 1);
    try {
        const heed::Tokenizer tokenizer = heed::Tokenizer::from_json(whole.substr(0, cut));
        require(tokenizer.size() >= 0);
        std::vector<std::int64_t> ids =
            tokenizer.encode(text, {.add_special_tokens = false, .truncate_and_pad = false});
        for (const std::int64_t id : ids) { require(id >= 0 && id < tokenizer.id_limit()); }
        ids.push_back(-1);
        ids.push_back(tokenizer.id_limit());
        (void)tokenizer.encode_pair(text, "a b");
        (void)tokenizer.decode(ids, false);
        (void)tokenizer.decode_bytes(ids);
    } catch (const heed::Error&) { return 0; }
    return 0;
}
