#include "text/word_models.h"

#include <heed/error.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/refuse.h"
#include "text/bpe.h"
#include "text/json_field.h"
#include "text/utf8.h"

namespace heed::text {
namespace {

/// -1 where the vocabulary has none: texts that need it are refused.
std::int64_t unknown_id(const JsonField& field, const Vocabulary& vocabulary, std::string_view otherwise) {
    return vocabulary.id_of(field.text_or(otherwise)).value_or(-1);
}

}  // namespace

WordPiece::WordPiece(const JsonField& field) : vocabulary_(field["vocab"]) {
    constexpr std::int64_t most = 1 << 20;
    const std::string prefix = field["continuing_subword_prefix"].text_or("##");
    unknown_ = unknown_id(field["unk_token"], vocabulary_, "[UNK]");
    longest_word_ = static_cast<std::size_t>(field["max_input_chars_per_word"].number_or(100, 0, most));
    std::vector<std::pair<std::string, std::int32_t>> first, later;
    for (std::int64_t id = 0; id < vocabulary_.id_limit(); ++id) {
        const auto token = vocabulary_.token_of(id);
        if (!token) { continue; }
        first.emplace_back(*token, static_cast<std::int32_t>(id));
        if (token->substr(0, prefix.size()) == prefix) {
            later.emplace_back(token->substr(prefix.size()), static_cast<std::int32_t>(id));
        }
    }
    first_ = Trie(std::move(first));
    later_ = Trie(std::move(later));
}

void WordPiece::encode(std::string_view piece, std::vector<std::int64_t>& ids) const {
    const std::size_t before = ids.size();
    bool known = characters_in(piece) <= longest_word_;
    for (std::size_t at = 0; known && at < piece.size();) {
        const auto [length, id] = (at == 0 ? first_ : later_).longest(piece, at);
        known = length > 0;
        at += length;
        ids.push_back(id);
    }
    if (known) { return; }
    ids.resize(before);
    if (unknown_ < 0) { refuse_unknown(); }
    ids.push_back(unknown_);
}

WordLevel::WordLevel(const JsonField& field)
    : vocabulary_(field["vocab"]), unknown_(unknown_id(field["unk_token"], vocabulary_, "<unk>")) {}

void WordLevel::encode(std::string_view piece, std::vector<std::int64_t>& ids) const {
    const std::int64_t id = vocabulary_.id_of(piece).value_or(unknown_);
    if (id < 0) { refuse_unknown(); }
    ids.push_back(id);
}

namespace {

/// A score as Hugging Face's tokenizers read it: its digits as a whole number, then one product or quotient with a
/// power of ten. Of 16 digits and more the last bit may differ from the nearest double, and among equal sums it
/// decides.
double score_as_read(double score) {
    char text[40];
    const auto written = std::to_chars(text, text + sizeof(text), std::abs(score), std::chars_format::scientific);
    std::uint64_t digits = 0;
    int exponent = 0;
    bool fraction = false;
    const char* at = text;
    for (; at != written.ptr && *at != 'e'; ++at) {
        if (*at == '.') {
            fraction = true;
            continue;
        }
        digits = 10 * digits + static_cast<std::uint64_t>(*at - '0');
        exponent -= fraction ? 1 : 0;
    }
    if (at == written.ptr) { return score; }  // no number
    at += at[1] == '+' ? 2 : 1;
    int shift = 0;
    std::from_chars(at, written.ptr, shift);
    exponent += shift;
    if (std::abs(exponent) > std::numeric_limits<double>::max_exponent10) { return score; }
    const std::string power_text = "1e" + std::to_string(std::abs(exponent));
    double power = 1;
    std::from_chars(power_text.data(), power_text.data() + power_text.size(), power);
    const auto whole = static_cast<double>(digits);
    return std::copysign(exponent < 0 ? whole / power : whole * power, score);
}

}  // namespace

Unigram::Unigram(const JsonField& field) : byte_fallback_(field["byte_fallback"].flag_or(false)) {
    const JsonField vocabulary = field["vocab"];
    if (!vocabulary.value().is_array() || vocabulary.value().empty()) {
        vocabulary.fail("a list of tokens and scores");
    }
    std::vector<std::string> tokens;
    double least = std::numeric_limits<double>::infinity();
    for (const nlohmann::json& entry : vocabulary.value()) {
        const bool pair = entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_number();
        if (!pair) { vocabulary.fail("[token, score]", "something else at " + std::to_string(tokens.size())); }
        tokens.push_back(entry[0].get<std::string>());
        scores_.push_back(score_as_read(entry[1].get<double>()));
        least = std::min(least, scores_.back());
    }
    constexpr double penalty = 10;
    unknown_score_ = least - penalty;
    if (const JsonField unknown = field["unk_id"]; !unknown.is_null()) {
        unknown_ = static_cast<std::int32_t>(unknown.number(0, static_cast<std::int64_t>(tokens.size()) - 1));
    }
    std::vector<std::pair<std::string, std::int32_t>> entries;
    for (std::size_t id = 0; id < tokens.size(); ++id) {
        entries.emplace_back(tokens[id], static_cast<std::int32_t>(id));
    }
    trie_ = Trie(std::move(entries));
    vocabulary_ = Vocabulary(std::move(tokens));
    bytes_ = vocabulary_.byte_tokens();
}

void Unigram::emit(std::string_view part, std::vector<std::int64_t>& ids) const {
    if (const std::int32_t id = vocabulary_.find(part); id >= 0) {
        ids.push_back(id);
        return;
    }
    const auto has_byte = [&](char byte) { return bytes_[static_cast<unsigned char>(byte)] >= 0; };
    if (byte_fallback_ && std::all_of(part.begin(), part.end(), has_byte)) {
        for (const char byte : part) { ids.push_back(bytes_[static_cast<unsigned char>(byte)]); }
        return;
    }
    ids.push_back(unknown_);
}

void Unigram::encode(std::string_view piece, std::vector<std::int64_t>& ids) const {
    struct Best {
        double score = 0;
        std::int64_t from = -1;
        std::int32_t id = -1;
    };
    std::vector<Best> best(piece.size() + 1);
    // Strictly better only: of equals the one that was found first stays.
    const auto offer = [&](std::size_t to, std::size_t from, double score, std::int32_t id) {
        if (best[to].from >= 0 && score <= best[to].score) { return; }
        best[to] = {score, static_cast<std::int64_t>(from), id};
    };
    for (std::size_t at = 0; at < piece.size();) {
        const auto size = static_cast<std::size_t>(character_at(piece, at).size);
        bool single = false;
        trie_.prefixes(piece, at, [&](std::size_t length, std::int32_t id) {
            offer(at + length, at, scores_[static_cast<std::size_t>(id)] + best[at].score, id);
            single = single || length == size;
        });
        if (!single && unknown_ < 0) {
            refuse("Tokenizer", "text", "characters of the vocabulary, as the file has no unk_id", "others");
        }
        if (!single) { offer(at + size, at, unknown_score_ + best[at].score, unknown_); }
        at += size;
    }
    // From the end: unknown neighbours are one.
    std::vector<std::pair<std::size_t, std::size_t>> parts;
    bool was_unknown = false;
    for (std::size_t end = piece.size(); end > 0;) {
        const auto begin = static_cast<std::size_t>(best[end].from);
        const bool is_unknown = best[end].id == unknown_;
        if (is_unknown && was_unknown) {
            parts.back().first = begin;
        } else {
            parts.emplace_back(begin, end);
        }
        was_unknown = is_unknown;
        end = begin;
    }
    for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
        emit(piece.substr(part->first, part->second - part->first), ids);
    }
}

std::unique_ptr<Model> read_model(const JsonField& field, bool bytes) {
    std::string type = field["type"].text_or("");
    if (type.empty()) {  // old files leave it out
        const bool list = field["vocab"].value().is_array();
        type = list ? "Unigram" : !field["merges"].is_null() ? "BPE" : "WordPiece";
    }
    if (type == "BPE") { return std::make_unique<Bpe>(field, bytes); }
    if (type == "WordPiece") { return std::make_unique<WordPiece>(field); }
    if (type == "WordLevel") { return std::make_unique<WordLevel>(field); }
    if (type == "Unigram") { return std::make_unique<Unigram>(field); }
    field["type"].fail("BPE, WordPiece, WordLevel or Unigram");
}

}  // namespace heed::text
