#include <heed/tokenizer.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <queue>
#include <set>
#include <unordered_map>

#include "base/refuse.h"
#include "text/pattern.h"
#include "text/pipeline.h"
#include "text/utf8.h"

namespace heed {
namespace {

using text::Span;

constexpr const char* function = "train_byte_bpe";

/// A word of the texts and how often it occurs.
struct TrainingWord {
    std::vector<std::int32_t> symbols;
    std::int64_t count = 0;
};

struct Pair {
    std::int32_t left = 0, right = 0;
    bool operator==(const Pair&) const = default;
    auto operator<=>(const Pair&) const = default;
};
struct PairHash {
    std::size_t operator()(const Pair& pair) const {
        return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(pair.left)) << 32U |
                static_cast<std::uint32_t>(pair.right)) *
               0x9E3779B97F4A7C15;
    }
};

/// The most frequent pair first; of equally frequent ones the smaller.
struct Frequent {
    std::int64_t count = 0;
    Pair pair;
    bool operator<(const Frequent& other) const {
        return count != other.count ? count < other.count : pair > other.pair;
    }
};

class BpeTrainer {
public:
    explicit BpeTrainer(const BpeTrainOptions& options) : options_(options) {
        for (const std::string& token : options.special_tokens) {
            if (token.empty()) { refuse(function, "special_tokens", "no empty one", "one"); }
            if (!text::is_valid_utf8(token)) { refuse(function, "special_tokens", "UTF-8", "other bytes"); }
            if (std::find(tokens_.begin(), tokens_.end(), token) == tokens_.end()) { tokens_.push_back(token); }
        }
        // In the order of the characters that spell them, as Hugging Face's trainer has them.
        std::vector<std::pair<char32_t, unsigned>> alphabet;
        for (unsigned byte = 0; byte < 256; ++byte) {
            const char c = static_cast<char>(static_cast<unsigned char>(byte));
            alphabet.emplace_back(text::character_at(text::bytes_as_characters({&c, 1}), 0).code, byte);
        }
        std::sort(alphabet.begin(), alphabet.end());
        for (const auto& [code, byte] : alphabet) {
            symbol_of_byte_[byte] = static_cast<std::int32_t>(tokens_.size());
            std::string spelled;
            text::append(spelled, code);
            tokens_.push_back(std::move(spelled));
        }
        if (options.vocabulary < static_cast<std::int64_t>(tokens_.size())) {
            refuse(function, "vocabulary",
                   "at least " + std::to_string(tokens_.size()) + " for the bytes and the special tokens",
                   std::to_string(options.vocabulary));
        }
    }

    void count_words(std::span<const std::string_view> texts, const text::Pattern& pattern) {
        std::unordered_map<std::string, std::int64_t> counts;
        text::Regex::Scratch scratch;
        std::vector<Span> found;
        for (const std::string_view given : texts) {
            pattern.find_all(given, scratch, found);
            std::size_t at = 0;
            const auto add = [&](std::size_t begin, std::size_t end) {
                if (end > begin) { ++counts[std::string(given.substr(begin, end - begin))]; }
            };
            for (const Span& span : found) {
                add(at, span.begin);
                add(span.begin, span.end);
                at = span.end;
            }
            add(at, given.size());
        }
        for (const auto& [word, count] : counts) {
            TrainingWord& added = words_.emplace_back();
            added.count = count;
            for (const char byte : word) { added.symbols.push_back(symbol_of_byte_[static_cast<unsigned char>(byte)]); }
        }
    }

    void train() {
        for (std::size_t n = 0; n < words_.size(); ++n) { count_pairs(n); }
        for (const auto& [pair, count] : counts_) { queue_.push({count, pair}); }
        while (static_cast<std::int64_t>(tokens_.size()) < options_.vocabulary && !queue_.empty()) {
            const Frequent best = queue_.top();
            queue_.pop();
            const std::int64_t count = counts_[best.pair];
            if (count != best.count) {  // it has changed since it was put there
                if (count > 0) { queue_.push({count, best.pair}); }
                continue;
            }
            if (count < std::max<std::int64_t>(1, options_.min_count)) { break; }
            merge(best.pair);
        }
    }

    std::string json() const {
        using nlohmann::ordered_json;
        ordered_json byte_level = {{"type", "ByteLevel"},
                                   {"add_prefix_space", false},
                                   {"trim_offsets", true},
                                   {"use_regex", options_.pattern.empty()}};
        ordered_json file;
        file["version"] = "1.0";
        file["truncation"] = nullptr;
        file["padding"] = nullptr;
        file["added_tokens"] = ordered_json::array();
        for (std::size_t id = 0; id + 256 + merges_.size() < tokens_.size(); ++id) {
            file["added_tokens"].push_back({{"id", id},
                                            {"content", tokens_[id]},
                                            {"single_word", false},
                                            {"lstrip", false},
                                            {"rstrip", false},
                                            {"normalized", false},
                                            {"special", true}});
        }
        file["normalizer"] = nullptr;
        if (options_.pattern.empty()) {
            file["pre_tokenizer"] = byte_level;
        } else {
            const ordered_json split = {{"type", "Split"},
                                        {"pattern", {{"Regex", options_.pattern}}},
                                        {"behavior", "Isolated"},
                                        {"invert", false}};
            file["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", ordered_json::array({split, byte_level})}};
        }
        file["post_processor"] = nullptr;
        byte_level["use_regex"] = true;
        file["decoder"] = byte_level;
        ordered_json& model = file["model"];
        model = {{"type", "BPE"},
                 {"dropout", nullptr},
                 {"unk_token", nullptr},
                 {"continuing_subword_prefix", nullptr},
                 {"end_of_word_suffix", nullptr},
                 {"fuse_unk", false},
                 {"byte_fallback", false},
                 {"ignore_merges", false}};
        ordered_json::object_t vocabulary;
        for (std::size_t id = 0; id < tokens_.size(); ++id) {
            vocabulary.std::vector<std::pair<const std::string, ordered_json>>::emplace_back(tokens_[id], id);
        }
        model["vocab"] = std::move(vocabulary);
        model["merges"] = ordered_json::array();
        for (const Pair& pair : merges_) {
            model["merges"].push_back(
                {tokens_[static_cast<std::size_t>(pair.left)], tokens_[static_cast<std::size_t>(pair.right)]});
        }
        return file.dump();
    }

private:
    void count_pairs(std::size_t word) {
        const TrainingWord& counted = words_[word];
        for (std::size_t n = 0; n + 1 < counted.symbols.size(); ++n) {
            const Pair pair{counted.symbols[n], counted.symbols[n + 1]};
            counts_[pair] += counted.count;
            where_[pair].insert(word);
        }
    }

    void merge(const Pair& pair) {
        const std::string token =
            tokens_[static_cast<std::size_t>(pair.left)] + tokens_[static_cast<std::size_t>(pair.right)];
        // Two ways can lead to one token, or to a special one.
        const auto known = std::find(tokens_.begin(), tokens_.end(), token);
        const auto id = static_cast<std::int32_t>(known - tokens_.begin());
        if (known == tokens_.end()) { tokens_.push_back(token); }
        merges_.push_back(pair);
        std::set<Pair> changed;
        const std::set<std::size_t> words = std::move(where_[pair]);
        where_.erase(pair);
        for (const std::size_t word : words) { merge_in(words_[word], word, pair, id, changed); }
        counts_.erase(pair);
        for (const Pair& other : changed) {
            if (const auto found = counts_.find(other); found != counts_.end() && found->second > 0) {
                queue_.push({found->second, other});
            }
        }
    }

    void merge_in(TrainingWord& word, std::size_t number, const Pair& pair, std::int32_t id, std::set<Pair>& changed) {
        std::vector<std::int32_t> merged;
        merged.reserve(word.symbols.size());
        for (std::size_t n = 0; n < word.symbols.size(); ++n) {
            const bool hit =
                n + 1 < word.symbols.size() && word.symbols[n] == pair.left && word.symbols[n + 1] == pair.right;
            merged.push_back(hit ? id : word.symbols[n]);
            n += hit ? 1 : 0;
        }
        if (merged.size() == word.symbols.size()) { return; }
        for (std::size_t n = 0; n + 1 < word.symbols.size(); ++n) {
            counts_[{word.symbols[n], word.symbols[n + 1]}] -= word.count;
        }
        word.symbols = std::move(merged);
        for (std::size_t n = 0; n + 1 < word.symbols.size(); ++n) {
            const Pair next{word.symbols[n], word.symbols[n + 1]};
            counts_[next] += word.count;
            if (next.left == id || next.right == id) {
                changed.insert(next);
                where_[next].insert(number);
            }
        }
    }

    const BpeTrainOptions& options_;
    std::vector<std::string> tokens_;
    std::int32_t symbol_of_byte_[256] = {};
    std::vector<TrainingWord> words_;
    std::vector<Pair> merges_;
    std::unordered_map<Pair, std::int64_t, PairHash> counts_;
    std::unordered_map<Pair, std::set<std::size_t>, PairHash> where_;
    std::priority_queue<Frequent> queue_;
};

}  // namespace

Tokenizer train_byte_bpe(std::span<const std::string_view> texts, const BpeTrainOptions& options) {
    BpeTrainer trainer(options);
    trainer.count_words(texts, text::Pattern(options.pattern.empty() ? text::gpt2_pattern : options.pattern));
    trainer.train();
    return Tokenizer::from_json(trainer.json());
}

}  // namespace heed
