#include "model/gguf_tokenizer.h"

#include <algorithm>
#include <array>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <unordered_map>

#include <heed/tokenizer.h>

#include "io/file.h"

namespace heed {
namespace {

using nlohmann::json;

constexpr std::size_t longest_piece = 512;  ///< that is looked at for merges

/// What a token is, as GGUF counts it.
enum TokenKind : std::int64_t { unknown_token = 2, control_token = 3, user_token = 4, byte_token = 6 };

template <class T>
const T* metadata(const GgufFile& file, const char* key) {
    const auto found = file.metadata().find(key);
    return found == file.metadata().end() ? nullptr : std::get_if<T>(&found->second);
}

/// How a byte-level tokenizer cuts a text before anything is merged, by llama.cpp's name for it.
struct Cutting {
    std::string_view name;
    const char* expression;  ///< null: the one that is built into ByteLevel, GPT-2's
    bool ignore_merges, adds_bos;
};

constexpr const char* llama3_expression =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* qwen2_expression =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr std::array cuttings = {
    Cutting{"gpt-2", nullptr, false, false},          Cutting{"llama-bpe", llama3_expression, true, true},
    Cutting{"llama3", llama3_expression, true, true}, Cutting{"llama-v3", llama3_expression, true, true},
    Cutting{"qwen2", qwen2_expression, false, false}, Cutting{"deepseek-r1-qwen", qwen2_expression, false, false}};

/// What both kinds of files have in common.
class Reader {
public:
    explicit Reader(const GgufFile& file)
        : file_(file),
          tokens_(*metadata<std::vector<std::string>>(file, "tokenizer.ggml.tokens")),
          kinds_(metadata<std::vector<std::int64_t>>(file, "tokenizer.ggml.token_type")) {}

    const std::vector<std::string>& tokens() const { return tokens_; }
    std::int64_t kind(std::size_t id) const { return kinds_ != nullptr && id < kinds_->size() ? (*kinds_)[id] : 1; }
    std::optional<std::string> token(const char* key) const {
        const auto* id = metadata<std::int64_t>(file_, key);
        const bool there = id != nullptr && *id >= 0 && *id < static_cast<std::int64_t>(tokens_.size());
        return there ? std::optional(tokens_[static_cast<std::size_t>(*id)]) : std::nullopt;
    }
    bool flag(const char* key, bool usual) const {
        const bool* given = metadata<bool>(file_, key);
        return given != nullptr ? *given : usual;
    }

    json vocabulary() const {
        json result = json::object();
        for (std::size_t id = 0; id < tokens_.size(); ++id) { result[tokens_[id]] = id; }
        return result;
    }
    json added_tokens() const {
        json result = json::array();
        for (std::size_t id = 0; id < tokens_.size(); ++id) {
            if (kind(id) != control_token && kind(id) != user_token && kind(id) != unknown_token) { continue; }
            result.push_back({{"id", id},
                              {"content", tokens_[id]},
                              {"single_word", false},
                              {"lstrip", false},
                              {"rstrip", false},
                              {"normalized", false},
                              {"special", kind(id) != user_token}});
        }
        return result;
    }
    /// The tokens around a text and around two.
    json post_processor(bool bos_usual) const {
        const auto bos = token("tokenizer.ggml.bos_token_id"), eos = token("tokenizer.ggml.eos_token_id");
        const bool before = bos && flag("tokenizer.ggml.add_bos_token", bos_usual);
        const bool after = eos && flag("tokenizer.ggml.add_eos_token", false);
        if (!before && !after) { return nullptr; }
        json special = json::object(), single = json::array(), pair = json::array();
        const auto add = [&](json& to, const std::optional<std::string>& name, std::int64_t type) {
            to.push_back({{"SpecialToken", {{"id", *name}, {"type_id", type}}}});
            const auto id = std::ranges::find(tokens_, *name) - tokens_.begin();
            special[*name] = {{"id", *name}, {"ids", json::array({id})}, {"tokens", json::array({*name})}};
        };
        const auto around = [&](json& to, const char* sequence, std::int64_t type) {
            if (before) { add(to, bos, type); }
            to.push_back({{"Sequence", {{"id", sequence}, {"type_id", type}}}});
            if (after) { add(to, eos, type); }
        };
        around(single, "A", 0);
        around(pair, "A", 0);
        around(pair, "B", 1);
        return {{"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", special}};
    }

private:
    const GgufFile& file_;
    const std::vector<std::string>& tokens_;
    const std::vector<std::int64_t>* kinds_;
};

/// The parts of a file between its fixed ones.
struct TokenizerParts {
    json normalizer = nullptr, pre_tokenizer = nullptr, decoder = nullptr, model = nullptr;
    bool bos_usual = false;
};

GgufTokenizer whole_file(const Reader& reader, const TokenizerParts& parts) {
    const json file = {{"version", "1.0"},
                       {"truncation", nullptr},
                       {"padding", nullptr},
                       {"added_tokens", reader.added_tokens()},
                       {"normalizer", parts.normalizer},
                       {"pre_tokenizer", parts.pre_tokenizer},
                       {"post_processor", reader.post_processor(parts.bos_usual)},
                       {"decoder", parts.decoder},
                       {"model", parts.model}};
    try {
        GgufTokenizer result{.json = file.dump(1)};
        Tokenizer::from_json(result.json);  // a file may claim what no tokenizer can be
        return result;
    } catch (const json::type_error&) {
        return {.why_none = "tokenizer.ggml.tokens: expected UTF-8, got something else"};
    } catch (const Error& error) { return {.why_none = error.what()}; }
}

GgufTokenizer byte_level(const GgufFile& file, const Reader& reader) {
    const auto* merges = metadata<std::vector<std::string>>(file, "tokenizer.ggml.merges");
    if (merges == nullptr) { return {.why_none = "tokenizer.ggml.merges: expected texts, got none"}; }
    const auto* pre = metadata<std::string>(file, "tokenizer.ggml.pre");
    const std::string name = pre != nullptr ? *pre : "none";
    const auto cutting = std::ranges::find(cuttings, name, &Cutting::name);
    if (cutting == cuttings.end()) {
        return {.why_none = "tokenizer.ggml.pre: expected gpt-2, llama-bpe or qwen2, got " + in_quotes(name)};
    }
    json bytes = {{"type", "ByteLevel"},
                  {"add_prefix_space", false},
                  {"trim_offsets", true},
                  {"use_regex", cutting->expression == nullptr}};
    json pre_tokenizer = bytes;
    if (cutting->expression != nullptr) {
        const json split = {{"type", "Split"},
                            {"pattern", {{"Regex", cutting->expression}}},
                            {"behavior", "Isolated"},
                            {"invert", false}};
        pre_tokenizer = {{"type", "Sequence"}, {"pretokenizers", json::array({split, bytes})}};
    }
    TokenizerParts parts{.pre_tokenizer = pre_tokenizer, .decoder = bytes, .bos_usual = cutting->adds_bos};
    if (cutting->expression == qwen2_expression) { parts.normalizer = {{"type", "NFC"}}; }
    parts.model = {{"type", "BPE"},
                   {"ignore_merges", cutting->ignore_merges},
                   {"vocab", reader.vocabulary()},
                   {"merges", *merges}};
    return whole_file(reader, parts);
}

/// Pieces of a SentencePiece file have scores in the place of merges: whatever two pieces make a third is one, better
/// scores first.
json merges_by_score(const Reader& reader, const std::vector<double>& scores) {
    std::unordered_map<std::string_view, std::size_t> ids;
    for (std::size_t id = 0; id < reader.tokens().size(); ++id) { ids.emplace(reader.tokens()[id], id); }
    struct Merge {
        double score;
        std::string_view left, right;
    };
    std::vector<Merge> merges;
    for (std::size_t id = 0; id < reader.tokens().size() && id < scores.size(); ++id) {
        const std::string_view token = reader.tokens()[id];
        const bool no_piece = reader.kind(id) == control_token || reader.kind(id) == unknown_token ||
                              reader.kind(id) == byte_token || token.size() > longest_piece;
        if (no_piece) { continue; }
        for (std::size_t at = token.size(); at-- > 1;) {  // longer beginnings first
            const bool inside = (static_cast<unsigned char>(token[at]) & 0xC0U) == 0x80U;
            const std::string_view left = token.substr(0, at), right = token.substr(at);
            if (!inside && ids.contains(left) && ids.contains(right)) { merges.push_back({scores[id], left, right}); }
        }
    }
    std::ranges::stable_sort(merges, std::greater<>(), &Merge::score);
    json result = json::array();
    for (const Merge& merge : merges) { result.push_back(json::array({merge.left, merge.right})); }
    return result;
}

GgufTokenizer pieces(const GgufFile& file, const Reader& reader) {
    const auto* scores = metadata<std::vector<double>>(file, "tokenizer.ggml.scores");
    if (scores == nullptr) { return {.why_none = "tokenizer.ggml.scores: expected numbers, got none"}; }
    const char* space = "\u2581";
    json normalizers = json::array(), decoders = json::array();
    const bool prefix = reader.flag("tokenizer.ggml.add_space_prefix", true);
    if (prefix) { normalizers.push_back({{"type", "Prepend"}, {"prepend", space}}); }
    normalizers.push_back({{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", space}});
    decoders.push_back({{"type", "Replace"}, {"pattern", {{"String", space}}}, {"content", " "}});
    decoders.push_back({{"type", "ByteFallback"}});
    decoders.push_back({{"type", "Fuse"}});
    if (prefix) { decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}); }
    const auto unknown = reader.token("tokenizer.ggml.unknown_token_id");
    TokenizerParts parts{.bos_usual = true};
    parts.normalizer = {{"type", "Sequence"}, {"normalizers", normalizers}};
    parts.decoder = {{"type", "Sequence"}, {"decoders", decoders}};
    parts.model = {{"type", "BPE"},
                   {"unk_token", unknown ? json(*unknown) : json(nullptr)},
                   {"fuse_unk", true},
                   {"byte_fallback", true},
                   {"vocab", reader.vocabulary()},
                   {"merges", merges_by_score(reader, *scores)}};
    return whole_file(reader, parts);
}

}  // namespace

GgufTokenizer gguf_tokenizer(const GgufFile& file) {
    const auto* model = metadata<std::string>(file, "tokenizer.ggml.model");
    if (model == nullptr) { return {.why_none = "tokenizer.ggml.model: expected gpt2 or llama, got none"}; }
    if (metadata<std::vector<std::string>>(file, "tokenizer.ggml.tokens") == nullptr) {
        return {.why_none = "tokenizer.ggml.tokens: expected texts, got none"};
    }
    const Reader reader(file);
    if (*model == "gpt2") { return byte_level(file, reader); }
    if (*model == "llama") { return pieces(file, reader); }
    return {.why_none = "tokenizer.ggml.model: expected gpt2 or llama, got " + in_quotes(*model)};
}

}  // namespace heed
