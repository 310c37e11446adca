#include "text/bpe.h"

#include <algorithm>
#include <queue>

#include "text/json_field.h"
#include "text/utf8.h"

namespace heed::text {

void MergeTable::reserve(std::size_t count) {
    std::size_t size = slots_.size();
    while (size < count * 2) { size *= 2; }
    if (size == slots_.size()) { return; }
    std::vector<Slot> old(size);
    old.swap(slots_);
    mask_ = size - 1;
    shift_ = 64;
    for (std::size_t n = size; n > 1; n /= 2) { --shift_; }
    count_ = 0;
    for (const Slot& slot : old) {
        if (slot.key == free_key) { continue; }
        set(static_cast<std::int32_t>(slot.key >> 32U), static_cast<std::int32_t>(slot.key & 0xFFFFFFFF), slot.merge);
    }
}

void MergeTable::set(std::int32_t left, std::int32_t right, Merge merge) {
    if ((count_ + 1) * 2 > slots_.size()) { reserve(count_ + 1); }
    const std::uint64_t key = key_of(left, right);
    std::size_t n = place(key);
    while (slots_[n].key != free_key && slots_[n].key != key) { n = (n + 1) & mask_; }
    count_ += slots_[n].key == free_key ? 1 : 0;
    slots_[n] = {key, merge};
}

bool reads_bytes(const JsonField& model) {
    // With any of these a character's spelling matters.
    const bool spelling = !model["continuing_subword_prefix"].text_or("").empty() ||
                          !model["end_of_word_suffix"].text_or("").empty() || model["byte_fallback"].flag_or(false);
    return !model["merges"].is_null() && model["type"].text_or("BPE") == "BPE" && !spelling;
}

Bpe::Bpe(const JsonField& field, bool bytes) : vocabulary_(field["vocab"]) {
    const JsonField dropout = field["dropout"];
    if (!dropout.is_null() && !(dropout.value().is_number() && dropout.value().get<double>() == 0)) {
        dropout.fail("no dropout: encoding is deterministic");
    }
    options_ = {.prefix = field["continuing_subword_prefix"].text_or(""),
                .suffix = field["end_of_word_suffix"].text_or(""),
                .fuse_unknown = field["fuse_unk"].flag_or(false),
                .byte_fallback = field["byte_fallback"].flag_or(false),
                .ignore_merges = field["ignore_merges"].flag_or(false)};
    options_.bytes = bytes;
    if (const JsonField unknown = field["unk_token"]; !unknown.is_null()) {
        options_.unknown = vocabulary_.find(unknown.text());  // where there is none, texts that need it are refused
    }
    prepare_table();
    read_merges(field["merges"]);
}

void Bpe::prepare_table() {
    whole_ = std::make_unique<std::atomic<std::uint8_t>[]>(static_cast<std::size_t>(vocabulary_.id_limit()));
    pieces_.reserve(static_cast<std::size_t>(vocabulary_.size()));
    for (std::int64_t id = 0; id < vocabulary_.id_limit(); ++id) {
        const auto token = vocabulary_.token_of(id);
        if (!token) { continue; }
        if (!options_.bytes) {
            pieces_.set(*token, static_cast<std::int32_t>(id));
        } else if (const auto spelled = characters_as_bytes(*token)) {
            pieces_.set(*spelled, static_cast<std::int32_t>(id));
        }
    }
    for (unsigned byte = 0; byte < 256; ++byte) {
        const char piece = static_cast<char>(static_cast<unsigned char>(byte));
        single_[byte] = pieces_.find({&piece, 1});
    }
    if (options_.byte_fallback) { bytes_ = vocabulary_.byte_tokens(); }
}

void Bpe::add_merge(const JsonField& field, std::string_view left, std::string_view right, std::uint32_t rank) {
    const std::int32_t first = vocabulary_.find(left), second = vocabulary_.find(right);
    if (first < 0 || second < 0) { field.fail("two tokens of the vocabulary"); }
    if (right.size() < options_.prefix.size()) { field.fail("a second token with the prefix"); }
    const std::int32_t whole = vocabulary_.find(std::string(left) + std::string(right.substr(options_.prefix.size())));
    if (whole < 0) { field.fail("two tokens that make one of the vocabulary"); }
    merges_.set(first, second, {rank, whole});
}

void Bpe::read_merges(const JsonField& field) {
    if (!field.value().is_array()) { field.fail("a list"); }
    merges_.reserve(field.value().size());
    std::uint32_t rank = 0;
    for (const nlohmann::json& merge : field.value()) {
        const JsonField one(merge, field.name());
        if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
            add_merge(one, merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>(), rank++);
            continue;
        }
        const std::string_view line = one.text();
        if (line.substr(0, 8) == "#version") { continue; }
        const std::size_t space = line.find(' ');
        if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
            one.fail("two tokens with a space between");
        }
        add_merge(one, line.substr(0, space), line.substr(space + 1), rank++);
    }
}

/// Unknown characters wait, because neighbours may become one.
class Bpe::Unknowns {
public:
    Unknowns(const BpeOptions& options, std::vector<std::int32_t>& symbols) : options_(options), symbols_(symbols) {}
    void add() {
        if (!options_.unknown) { return; }
        if (*options_.unknown < 0) { refuse_unknown(); }
        if (waiting_ && !options_.fuse_unknown) { flush(); }
        waiting_ = true;
    }
    void flush() {
        if (waiting_) { symbols_.push_back(*options_.unknown); }
        waiting_ = false;
    }

private:
    const BpeOptions& options_;
    std::vector<std::int32_t>& symbols_;
    bool waiting_ = false;
};

void Bpe::split_characters(std::string_view piece, std::vector<std::int32_t>& symbols) const {
    Unknowns unknowns(options_, symbols);
    const bool decorated = !options_.prefix.empty() || !options_.suffix.empty();
    std::string spelled;
    for (std::size_t at = 0; at < piece.size();) {
        const std::size_t size = options_.bytes ? 1 : static_cast<std::size_t>(character_at(piece, at).size);
        std::string_view character = piece.substr(at, size);
        if (decorated) {
            spelled = at > 0 ? options_.prefix : std::string();
            spelled += character;
            if (at + size == piece.size()) { spelled += options_.suffix; }
            character = spelled;
        }
        at += size;
        const std::int32_t id =
            character.size() == 1 ? single_[static_cast<unsigned char>(character[0])] : pieces_.find(character);
        if (id >= 0) {
            unknowns.flush();
            symbols.push_back(id);
            continue;
        }
        // Bytes do not flush: an unknown character that waits comes behind them, as in Hugging Face's.
        const auto has_byte = [&](char byte) { return bytes_[static_cast<unsigned char>(byte)] >= 0; };
        if (options_.byte_fallback && std::all_of(character.begin(), character.end(), has_byte)) {
            for (const char byte : character) { symbols.push_back(bytes_[static_cast<unsigned char>(byte)]); }
            continue;
        }
        unknowns.add();
    }
    unknowns.flush();
}

void Bpe::merge_few(std::vector<std::int32_t>& symbols) const {
    constexpr std::size_t most = 64;
    Merge merges[most];
    std::size_t count = symbols.size();
    for (std::size_t n = 0; n + 1 < count; ++n) { merges[n] = merges_.find(symbols[n], symbols[n + 1]); }
    while (count > 1) {
        std::size_t best = 0;
        for (std::size_t n = 1; n + 1 < count; ++n) { best = merges[n].rank < merges[best].rank ? n : best; }
        if (merges[best].rank == MergeTable::no_rank) { break; }
        symbols[best] = merges[best].id;
        for (std::size_t n = best + 1; n + 1 < count; ++n) {
            symbols[n] = symbols[n + 1];
            merges[n] = merges[n + 1];
        }
        --count;
        if (best > 0) { merges[best - 1] = merges_.find(symbols[best - 1], symbols[best]); }
        if (best + 1 < count) { merges[best] = merges_.find(symbols[best], symbols[best + 1]); }
    }
    symbols.resize(count);
}

void Bpe::merge_many(std::vector<std::int32_t>& symbols) const {
    struct Link {
        std::int64_t before, after;
    };
    struct Candidate {
        std::uint32_t rank;
        std::int64_t at;
        bool operator>(const Candidate& other) const { return rank != other.rank ? rank > other.rank : at > other.at; }
    };
    const auto size = static_cast<std::int64_t>(symbols.size());
    std::vector<Link> links(symbols.size());
    for (std::int64_t n = 0; n < size; ++n) { links[static_cast<std::size_t>(n)] = {n - 1, n + 1 < size ? n + 1 : -1}; }
    const auto symbol = [&](std::int64_t n) -> std::int32_t& { return symbols[static_cast<std::size_t>(n)]; };
    const auto link = [&](std::int64_t n) -> Link& { return links[static_cast<std::size_t>(n)]; };
    std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
    const auto consider = [&](std::int64_t n) {
        if (n < 0 || link(n).after < 0) { return; }
        const Merge merge = merges_.find(symbol(n), symbol(link(n).after));
        if (merge.rank != MergeTable::no_rank) { queue.push({merge.rank, n}); }
    };
    for (std::int64_t n = 0; n + 1 < size; ++n) { consider(n); }
    constexpr std::int32_t gone = -1;
    while (!queue.empty()) {
        const Candidate top = queue.top();
        queue.pop();
        if (symbol(top.at) == gone || link(top.at).after < 0) { continue; }
        const std::int64_t right = link(top.at).after;
        const Merge merge = merges_.find(symbol(top.at), symbol(right));
        if (merge.rank != top.rank) { continue; }  // of neighbours that are no more
        symbol(top.at) = merge.id;
        symbol(right) = gone;
        link(top.at).after = link(right).after;
        if (link(right).after >= 0) { link(link(right).after).before = top.at; }
        consider(link(top.at).before);
        consider(top.at);
    }
    symbols.erase(std::remove(symbols.begin(), symbols.end(), gone), symbols.end());
}

bool Bpe::merges_to_itself(std::string_view piece, std::int32_t id) const {
    std::atomic<std::uint8_t>& known = whole_[static_cast<std::size_t>(id)];
    std::uint8_t answer = known.load(std::memory_order_relaxed);
    if (answer == 0) {
        std::vector<std::int64_t> merged;
        merge_to(piece, merged);
        answer = merged.size() == 1 && merged.front() == id ? 2 : 1;
        known.store(answer, std::memory_order_relaxed);  // any thread finds the same
    }
    return answer == 2;
}

void Bpe::merge_to(std::string_view piece, std::vector<std::int64_t>& ids) const {
    constexpr std::size_t few = 64;  // up to here looking at all neighbours beats a queue
    thread_local std::vector<std::int32_t> symbols;
    symbols.clear();
    split_characters(piece, symbols);
    if (symbols.size() <= few) {
        merge_few(symbols);
    } else {
        merge_many(symbols);
    }
    ids.insert(ids.end(), symbols.begin(), symbols.end());
    constexpr std::size_t keep = 1U << 16U;
    if (symbols.capacity() > keep) { std::vector<std::int32_t>().swap(symbols); }
}

void Bpe::encode(std::string_view piece, std::vector<std::int64_t>& ids) const {
    if (piece.empty()) { return; }
    constexpr std::size_t worth_asking = 64;
    if (options_.ignore_merges || piece.size() <= worth_asking) {
        const std::int32_t id = pieces_.find(piece);
        if (id >= 0 && (options_.ignore_merges || merges_to_itself(piece, id))) {
            ids.push_back(id);
            return;
        }
    }
    merge_to(piece, ids);
}

}  // namespace heed::text
