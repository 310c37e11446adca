#include <heed/tokenizer.h>

#include <nlohmann/json.hpp>

#include "base/refuse.h"
#include "text/pipeline.h"

namespace heed {
namespace {

using Json = nlohmann::ordered_json;

Json special_token(std::int64_t id, const std::string& content) {
    return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
            {"rstrip", false}, {"normalized", false}, {"special", true}};
}

Json sequence(const char* name) { return {{"Sequence", {{"id", name}, {"type_id", 0}}}}; }

/// `before`, the text or both texts, `after`: as TemplateProcessing spells it.
Json template_of(const Tokenizer& tokenizer, const SpecialTokens& tokens,
                 const std::vector<std::pair<std::string, std::int64_t>>& added) {
    const auto id_of = [&](const std::string& name) {
        for (const auto& [content, id] : added) {
            if (content == name) { return id; }
        }
        const auto id = tokenizer.id_of(name);
        if (!id) { refuse("with_special_tokens", "template", "a token that is there", "'" + name + "'"); }
        return *id;
    };
    Json special = Json::object(), before = Json::array(), after = Json::array();
    for (const auto& [names, to] : {std::pair(&tokens.before, &before), std::pair(&tokens.after, &after)}) {
        for (const std::string& name : *names) {
            to->push_back({{"SpecialToken", {{"id", name}, {"type_id", 0}}}});
            special[name] = {{"id", name}, {"ids", {id_of(name)}}, {"tokens", {name}}};
        }
    }
    const auto around = [&](std::initializer_list<const char*> texts) {
        Json list = before;
        for (const char* text : texts) { list.push_back(sequence(text)); }
        list.insert(list.end(), after.begin(), after.end());
        return list;
    };
    return {{"type", "TemplateProcessing"},
            {"single", around({"A"})},
            {"pair", around({"A", "B"})},
            {"special_tokens", special}};
}

}  // namespace

Tokenizer byte_tokenizer() {
    const Json byte_level = {
        {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
    Json vocabulary = Json::object();
    for (int byte = 0; byte < 256; ++byte) {
        vocabulary[text::bytes_as_characters(std::string(1, static_cast<char>(byte)))] = byte;
    }
    const Json file = {{"version", "1.0"},
                       {"truncation", nullptr},
                       {"padding", nullptr},
                       {"added_tokens", Json::array()},
                       {"normalizer", nullptr},
                       {"pre_tokenizer", byte_level},
                       {"post_processor", nullptr},
                       {"decoder", byte_level},
                       {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", Json::array()}}}};
    return Tokenizer::from_json(file.dump());
}

Tokenizer with_special_tokens(const Tokenizer& tokenizer, const SpecialTokens& tokens) {
    Json file = Json::parse(tokenizer.to_json());
    if (!file["added_tokens"].is_array()) { file["added_tokens"] = Json::array(); }
    std::vector<std::pair<std::string, std::int64_t>> added;
    for (const std::string& name : tokens.added) {
        const bool twice = std::ranges::any_of(added, [&](const auto& one) { return one.first == name; });
        if (name.empty() || twice || tokenizer.id_of(name)) {
            refuse("with_special_tokens", "added", "a token that is new", "'" + name + "'");
        }
        added.emplace_back(name, tokenizer.id_limit() + static_cast<std::int64_t>(added.size()));
        file["added_tokens"].push_back(special_token(added.back().second, name));
    }
    file["truncation"] = file["padding"] = nullptr;
    const bool plain = tokens.before.empty() && tokens.after.empty();
    file["post_processor"] = plain ? Json(nullptr) : template_of(tokenizer, tokens, added);
    return Tokenizer::from_json(file.dump());
}

}  // namespace heed
