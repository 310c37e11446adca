#pragma once
/// The tokenizer of a GGUF as Hugging Face's tokenizer.json has it.

#include <heed/gguf.h>

#include <string>

namespace heed {

struct GgufTokenizer {
    std::string json{};      ///< a tokenizer.json; empty: there is none that heed can write
    std::string why_none{};  ///< then
};

GgufTokenizer gguf_tokenizer(const GgufFile& file);

}  // namespace heed
