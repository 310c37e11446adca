#pragma once
#include <heed/tokenizer.h>

#include "base/access.h"
#include "text/added_tokens.h"
#include "text/pipeline.h"
#include "text/template.h"

namespace heed {

struct HEED_INTERNAL Tokenizer::State {
    std::string json;
    std::unique_ptr<text::Normalizer> normalizer;
    std::unique_ptr<text::PreTokenizer> pre_tokenizer;
    std::unique_ptr<text::Model> model;
    std::unique_ptr<text::Decoder> decoder;
    text::AddedTokens added;
    text::Template around;

    std::vector<std::int64_t> encode(std::string_view given, bool allow_special) const;
    std::string decode(std::span<const std::int64_t> ids, bool skip_special, text::Bytes bytes) const;

private:
    void encode_normalized(std::string text, bool first, std::vector<std::int64_t>& ids) const;
};

}  // namespace heed
