#include <heed/tokenizer.h>

#include <algorithm>
#include <span>

#include "io/file.h"
#include "text/added_tokens.h"
#include "text/json_field.h"
#include "text/pipeline.h"
#include "text/template.h"
#include "text/tokenizer_state.h"
#include "text/utf8.h"

namespace heed {

using text::AddedToken;
using text::Bytes;
using text::JsonField;
using text::Piece;
using text::Segment;

namespace {

constexpr std::size_t file_limit = std::size_t{1} << 28U;
constexpr int depth_limit = 32;

std::string read_text(const std::filesystem::path& path) {
    const bool folder = std::filesystem::is_directory(path);
    const InputFile file("Tokenizer", folder ? model_folder(path) / "tokenizer.json" : path);
    if (file.size() > file_limit) {
        throw FileError("[Tokenizer] " + path.string() + ": expected at most 268435456 bytes, got " +
                        std::to_string(file.size()));
    }
    std::string text(static_cast<std::size_t>(file.size()), '\0');
    file.read(0, std::as_writable_bytes(std::span(text)));
    return text;
}

std::shared_ptr<const Tokenizer::State> read_state(std::string_view json) {
    const nlohmann::json file = text::parse_json(json, "json", file_limit, depth_limit);
    const JsonField whole(file, "json");
    if (whole["version"].text_or("1.0") != "1.0") { whole["version"].fail("1.0"); }
    auto state = std::make_shared<Tokenizer::State>();
    state->json = json;
    state->normalizer = text::read_normalizer(whole["normalizer"]);
    state->pre_tokenizer = text::read_pre_tokenizer(whole["pre_tokenizer"]);
    const JsonField model = whole["model"];
    const bool bytes = state->pre_tokenizer && state->pre_tokenizer->ends_with_bytes() && text::reads_bytes(model);
    if (bytes) { state->pre_tokenizer->leave_bytes(); }
    state->model = text::read_model(model, bytes);
    state->decoder = text::read_decoder(whole["decoder"]);
    state->added = text::AddedTokens(whole["added_tokens"], *state->model, state->normalizer.get());
    state->around = text::Template(whole["post_processor"], whole["truncation"], whole["padding"]);
    return state;
}

}  // namespace

void Tokenizer::State::encode_normalized(std::string text, bool first, std::vector<std::int64_t>& ids) const {
    if (text.empty()) { return; }
    text::Pieces pieces;
    pieces.text = std::move(text);
    pieces.pieces.push_back({0, pieces.text.size(), first});
    if (pre_tokenizer) { pre_tokenizer->apply(pieces); }
    for (const Piece& piece : pieces.pieces) {
        if (piece.begin == piece.end) { continue; }
        model->encode(std::string_view(pieces.text).substr(piece.begin, piece.end - piece.begin), ids);
    }
}

std::vector<std::int64_t> Tokenizer::State::encode(std::string_view given, bool allow_special) const {
    std::vector<std::int64_t> ids;
    ids.reserve(given.size() / 3);
    for (const Segment& raw : added.split_raw(given, allow_special)) {
        if (raw.id >= 0) {
            ids.push_back(raw.id);
            continue;
        }
        std::string part(given.substr(raw.span.begin, raw.span.end - raw.span.begin));
        if (normalizer) { normalizer->apply(part); }
        for (const Segment& segment : added.split_normalized(part, allow_special)) {
            if (segment.id >= 0) {
                ids.push_back(segment.id);
                continue;
            }
            const bool first = raw.span.begin == 0 && segment.span.begin == 0;
            const bool whole = segment.span.begin == 0 && segment.span.end == part.size();
            encode_normalized(
                whole ? std::move(part) : part.substr(segment.span.begin, segment.span.end - segment.span.begin), first,
                ids);
            if (whole) { break; }
        }
    }
    return ids;
}

std::string Tokenizer::State::decode(std::span<const std::int64_t> ids, bool skip_special, Bytes bytes) const {
    std::vector<std::string> tokens;
    tokens.reserve(ids.size());
    for (const std::int64_t id : ids) {
        const AddedToken* found = added.find(id);
        const auto token = found != nullptr ? std::optional(added.spelling(*found)) : model->token_of(id);
        if (!token || (skip_special && added.is_special(*token))) { continue; }
        tokens.emplace_back(*token);
    }
    std::string whole;
    if (decoder) {
        if (tokens.empty()) { return whole; }
        decoder->apply(tokens, bytes);
        for (const std::string& token : tokens) { whole += token; }
        return whole;
    }
    for (std::size_t n = 0; n < tokens.size(); ++n) { whole += (n > 0 ? " " : "") + tokens[n]; }
    return whole;
}

Tokenizer::Tokenizer(const std::filesystem::path& path) : state_(read_state(read_text(path))) {}

Tokenizer Tokenizer::from_json(std::string_view json) { return Tokenizer(read_state(json)); }

Encoding Tokenizer::encode_all(std::string_view text, const EncodeOptions& options) const {
    return state_->around.apply({.first = state_->encode(text, options.allow_special)}, options);
}

std::vector<std::int64_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
    return encode_all(text, options).ids;
}

Encoding Tokenizer::encode_pair(std::string_view first, std::string_view second, const EncodeOptions& options) const {
    return state_->around.apply({.first = state_->encode(first, options.allow_special),
                                 .second = state_->encode(second, options.allow_special),
                                 .pair = true},
                                options);
}

std::string Tokenizer::decode(std::span<const std::int64_t> ids, bool skip_special_tokens) const {
    return state_->decode(ids, skip_special_tokens, Bytes::replaced);
}

std::string Tokenizer::decode_bytes(std::span<const std::int64_t> ids, bool skip_special_tokens) const {
    return state_->decode(ids, skip_special_tokens, Bytes::kept);
}

std::int64_t Tokenizer::size() const {
    std::int64_t count = state_->model->size();
    for (const AddedToken& token : state_->added.all()) {
        const bool latest = state_->added.find(token.id) == &token;
        count += latest && !state_->model->token_of(token.id) ? 1 : 0;
    }
    return count;
}

std::int64_t Tokenizer::id_limit() const {
    std::int64_t limit = state_->model->id_limit();
    for (const AddedToken& token : state_->added.all()) { limit = std::max(limit, token.id + 1); }
    return limit;
}

std::optional<std::int64_t> Tokenizer::id_of(std::string_view token) const {
    if (const AddedToken* found = state_->added.find(token)) { return found->id; }
    return state_->model->id_of(token);
}

std::optional<std::string> Tokenizer::token_of(std::int64_t id) const {
    if (const AddedToken* found = state_->added.find(id)) { return found->content; }
    const auto token = state_->model->token_of(id);
    if (!token) { return std::nullopt; }
    return std::string(*token);
}

bool Tokenizer::is_special(std::int64_t id) const {
    const AddedToken* found = state_->added.find(id);
    return found != nullptr && found->special;
}

std::string Tokenizer::to_json() const { return state_->json; }

DecodeStream::DecodeStream(Tokenizer tokenizer, bool skip_special_tokens)
    : tokenizer_(std::move(tokenizer)), skip_special_(skip_special_tokens) {}

std::string DecodeStream::push(std::int64_t id) {
    ids_.push_back(id);
    std::string text = tokenizer_.decode_bytes(ids_, skip_special_);
    // Bytes of a character that may go on are held back, and whatever a decoder may yet change.
    const std::size_t end = text::incomplete_end(text);
    const bool grew = end > given_.size() && text.compare(0, given_.size(), given_) == 0;
    if (!grew) { return {}; }
    std::string fresh = text.substr(given_.size(), end - given_.size());
    given_ = text.substr(0, end);
    // A decoder looks back by one token at most: keep the last ones that gave text.
    constexpr std::size_t enough = 16;
    if (end == text.size() && ids_.size() > enough) {
        ids_.erase(ids_.begin(), ids_.end() - 4);
        given_ = tokenizer_.decode_bytes(ids_, skip_special_);
    }
    return text::valid_utf8(fresh);
}

std::string DecodeStream::finish() {
    const std::string text = tokenizer_.decode_bytes(ids_, skip_special_);
    const bool more = text.size() > given_.size() && text.compare(0, given_.size(), given_) == 0;
    std::string rest = more ? text::valid_utf8(std::string_view(text).substr(given_.size())) : std::string();
    ids_.clear();
    given_.clear();
    return rest;
}

}  // namespace heed
